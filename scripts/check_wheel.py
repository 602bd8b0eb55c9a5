"""Uses an installed memscale as a user without torch would; called by wheel.sh.

Run it with the interpreter of the environment that holds the wheel; the argument is
the wheel's file. Exits with a message at the first failed check.
"""

import importlib.util
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import elf_hardening

LICENSES = {"LICENSE", "LICENSES/jansson.txt", "LICENSES/xxHash.txt"}


def check_contents(wheel: pathlib.Path) -> None:
    """The file's name has the tag of the stable ABI; the wheel holds all licences and no stray files."""
    if "-cp310-abi3-manylinux" not in wheel.name:
        sys.exit(f"{wheel.name} is not tagged cp310-abi3-manylinux")
    names = zipfile.ZipFile(wheel).namelist()
    strays = [n for n in names if "__pycache__" in n or n.endswith(("meson.build", ".a", ".c", ".h"))]
    if strays:
        sys.exit(f"the wheel holds files that it should not: {strays}")
    lacking = [name for name in LICENSES if not any(n.endswith(f".dist-info/licenses/{name}") for n in names)]
    if lacking:
        sys.exit(f"the wheel lacks the licences {lacking}")


def check_hardening() -> None:
    """The extension and the program are compiled and linked with protections against exploits."""
    from memscale import _core

    program = pathlib.Path(sysconfig.get_path("scripts")) / "memscale"
    for path in (pathlib.Path(_core.__file__), program):
        missing = elf_hardening.read(path).missing()
        if missing:
            sys.exit(f"{path.name} lacks {', '.join(missing)}")
    if not elf_hardening.read(program).is_executable:
        sys.exit(f"{program.name} is not a position-independent executable")


def check_import() -> None:
    """The package imports without torch, and its versions in three places agree."""
    import memscale
    from memscale import _core

    if importlib.util.find_spec("torch") is not None:
        sys.exit("this environment has torch, so the check would prove nothing")
    if memscale.__version__ != _core.version():
        sys.exit(f"versions differ: {memscale.__version__}, {_core.version()}")
    memscale.Config(memory_budget_gb=4.0)
    try:
        memscale.Config(memory_budget_gb=-1.0)
    except memscale.ConfigError:
        pass
    else:
        sys.exit("Config() accepted memory_budget_gb=-1.0")


def check_program() -> None:
    """The program is a real executable, not a Python script, and runs."""
    from memscale import _core

    program = pathlib.Path(sysconfig.get_path("scripts")) / "memscale"
    if program.read_bytes()[:4] != b"\x7fELF":
        sys.exit(f"{program} is not an executable")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    if version.stdout != f"memscale {_core.version()}\n":
        sys.exit(f"memscale --version says {version.stdout!r}")
    subprocess.run([program, "doctor"], check=True)


if __name__ == "__main__":
    check_contents(pathlib.Path(sys.argv[1]))
    check_hardening()
    check_import()
    check_program()
