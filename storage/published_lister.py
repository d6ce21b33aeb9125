"""List across published targets: each page is of one stretch, and so of one generation (`storage/publish.py`).

A listing within a target is the source's, with other names. One that begins above a target, and runs through it, goes on
stretch by stretch; the pages of one stretch follow each other by the position alone, so nothing is kept between two pages but
what the token carries: a position, and the generation of the target that it lies in.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from storage.errors import GenerationGoneError
from storage.listing import ListQuery, ListResult, Position
from storage.publish import (
    MANIFEST_NAME,
    Pointer,
    Target,
    Targets,
    before_target,
    continued,
    is_behind,
    runs_through,
    source_query,
    target_result,
)

OnGeneration = Callable[[int | None], None]
"""Hears of which generation a page will be, before it is listed; None of a page outside of targets. The last word counts."""

_NOTHING: Final = ListResult((), (), is_truncated=False)


class PlainLister(Protocol):
    """Who lists names as they are: `lister.Lister`."""

    async def list(self, query: ListQuery) -> ListResult:
        """Give one page."""
        ...


class PointerSource(Protocol):
    """Who knows what targets show: `pointers.Pointers`."""

    @property
    def targets(self) -> Targets:
        """The targets of the policies in force."""
        ...

    async def pointer(self, target: Target, generation: int | None = None) -> Pointer:
        """Give what a target shows now, or showed in a generation.

        Raises:
            GenerationGoneError: The generation is not known.
        """
        ...


def unheard(generation: int | None) -> None:
    """Take no notice."""
    del generation


class PublishedLister:
    """Answers listings by the names that clients see."""

    def __init__(self, lister: PlainLister, pointers: PointerSource) -> None:
        self._lister = lister
        self._pointers = pointers

    async def page(self, query: ListQuery, on_generation: OnGeneration = unheard) -> ListResult:
        """Give one page; errors as `Lister.list`, which are of the generation that was said before.

        Raises:
            GenerationGoneError: The generation that the listing began with cannot be listed any more.
        """
        targets = self._pointers.targets.of_bucket(query.bucket)
        for target in targets:
            if query.prefix.startswith(target.prefix):
                pointer = await self._pointer(query, target, on_generation)
                return await self._shown(query, pointer, on_generation)
        if query.generation and not any(query.after.name.startswith(target.prefix) for target in targets):
            on_generation(query.generation)
            raise GenerationGoneError(
                f"what was listed in generation {query.generation} is no published target any more; "
                "begin the listing anew"
            )
        crossed = [target for target in targets if runs_through(query, target)]
        if not crossed or not query.max_keys:
            return await self._lister.list(query)
        return await self._stretch(query, crossed, on_generation)

    async def _pointer(self, query: ListQuery, target: Target, on_generation: OnGeneration) -> Pointer:
        """Give the pointer that a page is of: that of the page before, where there was one."""
        is_continued = query.after.name.startswith(target.prefix)
        # Should it be gone, that is an answer of this generation, too.
        on_generation(query.generation if is_continued else None)
        return await self._pointers.pointer(target, query.generation if is_continued else None)

    async def _stretch(
        self, query: ListQuery, crossed: Sequence[Target], on_generation: OnGeneration
    ) -> ListResult:
        """Give a page of the first stretch that has one."""
        for target in crossed:
            if is_behind(query.after, target.prefix):
                continue
            pointer = await self._pointer(query, target, on_generation)
            if not pointer.source:
                continue  # a prefix like any other
            within = query.after
            if not within.name.startswith(target.prefix):
                on_generation(None)
                page = before_target(await self._lister.list(query), target)
                if page.key_count:
                    return page
                within = Position()
            page = await self._shown(
                replace(query, prefix=target.prefix, after=within), pointer, on_generation
            )
            if page.key_count:
                return page if page.is_truncated else continued(page)
            query = replace(query, after=Position(target.prefix, is_prefix=True))
        on_generation(None)
        return await self._lister.list(query)

    async def _shown(self, query: ListQuery, pointer: Pointer, on_generation: OnGeneration) -> ListResult:
        """Give a page within a target, of one generation."""
        on_generation(pointer.generation)
        if not pointer.source:
            return replace(await self._lister.list(query), generation=pointer.generation)
        wanted = source_query(query, pointer)
        page = _NOTHING if wanted is None else await self._source_page(wanted, pointer)
        if query.generation is not None and not page.key_count:
            await self._check_there(pointer)
        return replace(page, generation=pointer.generation)

    async def _source_page(self, wanted: ListQuery, pointer: Pointer) -> ListResult:
        """Give a page of the source under the target's names; never one that is empty and not the last."""
        page = target_result(await self._lister.list(wanted), pointer)
        if page.key_count or not page.is_truncated:
            return page
        # It held nothing but a name that is not shown, and there is one such name.
        behind = Position(pointer.source + MANIFEST_NAME)
        return target_result(await self._lister.list(replace(wanted, after=behind)), pointer)

    async def _check_there(self, pointer: Pointer) -> None:
        """Find out whether a page without a line is the end of a listing, or what is left of a source that was removed."""
        current = await self._pointers.pointer(pointer.target)
        if current == pointer:
            return
        found = await self._lister.list(
            ListQuery(bucket=pointer.target.bucket, prefix=pointer.source, max_keys=1)
        )
        if not found.key_count:
            raise GenerationGoneError(
                f"the source of generation {pointer.generation} of {pointer.target} is gone; begin the listing anew"
            )
