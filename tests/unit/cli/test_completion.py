"""Shell completion: made from the declarations, and bash's runs."""

import shutil
import subprocess

import pytest

from ottla.cli.completion import SHELLS, tree

ROOT = tree()


@pytest.mark.parametrize("shell", list(SHELLS))
def test_every_command_and_long_option_is_in_the_script(shell: str) -> None:
    script = SHELLS[shell](ROOT)
    for node in ROOT.walk():
        assert all(word in script for word in node.path)
        for option in node.options:
            for flag in option.flags:
                assert flag.lstrip("-") in script, (node.path, flag)


@pytest.mark.parametrize("shell", [name for name in SHELLS if shutil.which(name)])
def test_the_shell_can_read_its_script(shell: str) -> None:
    checked = subprocess.run([shell, "-n"], input=SHELLS[shell](ROOT), capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["se"], ["serve"]),
        (
            ["storage", ""],
            ["format", "info", "version-mapping", "feature-dependencies", "random-uuid", "--help"],
        ),
        (["storage", "format", "--cl"], ["--cluster-id"]),
        (["serve", "-X", "log.segment."], ["log.segment.bytes=", "log.segment.delete.delay.ms="]),
        (["log", "dump", "-o", ""], ["table", "json"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash_offers_what_fits(typed: list[str], offered: list[str]) -> None:
    words = " ".join(f"'{word}'" for word in ["ottla", *typed])
    script = (
        SHELLS["bash"](ROOT)
        + f"\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _ottla; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    )
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True)
    assert done.stdout.split() == offered
