"""What somebody sees who types `lanefeed`: a list that fits, and words where the packages are missing."""

import subprocess
import sys

from typer.testing import CliRunner

from lanefeed_operator.cli.main import app

WITHOUT = "import sys; sys.modules['typer'] = None; from lanefeed_operator.cli.start import main; main()"


def test_the_list_of_commands_says_each_whole() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert "Change a job's number of pods" in said
    assert "..." not in said.partition("Commands:")[2], said


def test_every_command_has_a_help() -> None:
    for command in app.registered_commands:
        said = CliRunner().invoke(app, [str(command.name), "--help"])
        assert said.exit_code == 0, said.output


def test_without_its_packages_the_program_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the command line needs the package typer, which is not installed: pip install 'lanefeed[local]' to "
        "run jobs on this machine, 'lanefeed[cluster]' for jobs of a cluster\n"
    )
