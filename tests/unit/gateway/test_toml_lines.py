"""Lines of a TOML text, for messages."""

from gateway.toml_lines import TableLines, tables_of


def test_tables_of_gives_headers_and_keys_by_line() -> None:
    """Lines count from 1; what stands before the first header is a table without a line."""
    text = 'listen = "x"\n\n# [[policies]]\n[[policies]]\nmatch = "s3://a/*"\n  flush-delay = "1s"\n[[ "policies" ]]\n[other]\na=1\n'

    assert tables_of(text) == [
        TableLines(keys={"listen": 1}),
        TableLines("policies", 4, {"match": 5, "flush_delay": 6}),
        TableLines("policies", 7),
        TableLines("", 8, {"a": 9}),
    ]


def test_tables_of_looks_into_no_text_of_several_lines() -> None:
    """A header or key that is only quoted is none."""
    text = 'a = \'\'\'\n[[policies]]\nb = 1\n\'\'\' # ends\nc = """x"""\nd = """\ne = 1"""\nf = 1\n'

    assert tables_of(text) == [TableLines(keys={"a": 1, "c": 5, "d": 6, "f": 8})]


def test_line_of_is_that_of_the_header_when_the_key_is_not_there() -> None:
    """A key that is missing is looked for where its table begins; a table that nobody found has no line."""
    table = TableLines("policies", 4, {"match": 5})

    assert (table.line_of("match"), table.line_of("write"), TableLines().line_of("write")) == (5, 4, None)
