"""The sessions of the continuous integration, for a person: nox -s tests lint types bench core."""

import os
import shlex
import shutil
from pathlib import Path

import nox

# How torch is installed: what pip is given. "torch" takes the build that pip's configuration leads
# to. Another index or folder with CPU builds goes here, or into the environment:
#   TBRIDGE_TORCH="torch --find-links wheels" nox -s tests
TORCH = shlex.split(os.environ.get("TBRIDGE_TORCH", "torch"))

CONSTRAINTS = str(Path(__file__).parent / "constraints.txt")
SANITIZE = "-fsanitize=address,undefined"

nox.options.sessions = ["tests", "lint", "types"]
nox.options.error_on_missing_interpreters = True


def install_all(session: nox.Session, **options) -> None:
    """Install torch by its setting, then tbridge in place and what its tests need."""
    session.install("-c", CONSTRAINTS, *TORCH)
    session.install("-c", CONSTRAINTS, "-e", ".[test]", **options)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests and every example; arguments go to pytest."""
    install_all(session)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check rules, format, and that imports point down."""
    session.install("-c", CONSTRAINTS, "ruff", "import-linter")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly. The frameworks are not looked into."""
    session.install("-c", CONSTRAINTS, "mypy", "numpy", "ml_dtypes", "typer", "rich")
    session.run("mypy")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure; arguments go to the benchmarks."""
    install_all(session)
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def core(session: nox.Session) -> None:
    """Test the native core under the address and undefined behaviour sanitizers."""
    here = Path(__file__).parent
    copy = Path(session.create_tmp()) / "checkout"  # a build in place would be of no use to others
    shutil.rmtree(copy, ignore_errors=True)
    skip = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("tbridge", "tests"):
        shutil.copytree(here / name, copy / name, ignore=skip)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(here / name, copy / name)
    session.chdir(copy)
    flags = {
        "TBRIDGE_STRICT": "1",
        "TBRIDGE_CFLAGS": f"{SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1",
        "TBRIDGE_LDFLAGS": SANITIZE,
    }
    install_all(session, env=flags)
    # the sanitizer comes first, and libstdc++ with it: else it cannot follow exceptions
    compiler = os.environ.get("CC", "gcc")
    preload = [
        str(session.run(compiler, f"-print-file-name={name}", external=True, silent=True)).strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    session.run(
        "python",
        "-m",
        "pytest",
        "--capture=sys",  # let the sanitizer's report through
        "tests/test_core.py",
        *session.posargs,
        env={
            "LD_PRELOAD": ":".join(preload),
            "ASAN_OPTIONS": "detect_leaks=0",  # an interpreter frees nothing when it ends
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",  # so that the sanitizer sees each object
        },
    )
