"""The reader of TOML: that of Python 3.11, or of pip in Python 3.10."""

try:
    import tomllib
except ModuleNotFoundError:
    from pip._vendor import tomli as tomllib

__all__ = ["tomllib"]
