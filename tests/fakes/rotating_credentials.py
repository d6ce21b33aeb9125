"""Keys for the origin that a test rotates."""

from storage.origin.credentials import Credentials


class Rotating:
    """Credentials that change when they are refused."""

    def __init__(self, *access_keys: str) -> None:
        self._left = list(access_keys)

    async def credentials(self) -> Credentials:
        """Give the present ones."""
        return Credentials(self._left[0], "secret")

    def refused(self, credentials: Credentials) -> bool:
        """Go on to the next, if these are the present ones and another is left."""
        if credentials.access_key == self._left[0] and len(self._left) > 1:
            self._left.pop(0)
            return True
        return False
