from __future__ import annotations

import pytest

from edriver.cli.main import parser
from edriver.driver.config.engine_flags import with_engine
from edriver.driver.config.options import options_of
from edriver.driver.config.usage_error import UsageError


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        pytest.param("-np 2 --ray -H a:2 sh", "--ray and -H both define where workers run", id="fixed-hosts"),
        pytest.param("-np 2 --ray --launcher ssh sh", "--ray and --launcher both define", id="launcher"),
        pytest.param("-np 2 --ray-resources GPU=1 sh", "--ray-resources belongs to --ray", id="resources-alone"),
        pytest.param("-np 2 --ray sh true", "'sh' is not the address of a Ray cluster", id="swallowed-command"),
    ],
)
def test_flags_that_contradict_one_another(line: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        options_of(parser().parse_args(line.split()))


def test_an_engines_flag_picks_its_source_and_its_launcher() -> None:
    flags = parser().parse_args(["--ray", "head:6379", "--ray-resources", "GPU=1", "-np", "2", "sh"])
    meant = with_engine(flags)
    assert (meant.discovery, meant.launcher, meant.broker) == ("ray=head:6379,GPU=1", "ray", "ray")
    options = options_of(flags)
    assert options.launcher is not None
    assert options.broker is not None
