"""`python -m gateway` is `forebay`."""

from gateway.cli import main

if __name__ == "__main__":
    main()
