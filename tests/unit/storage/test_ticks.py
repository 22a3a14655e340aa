"""Work in threads and in slices."""

import asyncio
import threading

import pytest

from ottla.storage.background import in_thread


def test_a_job_that_fails_after_its_caller_was_cancelled_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_fail = threading.Event()

    def job() -> None:
        may_fail.wait(60)
        raise RuntimeError("no")

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(in_thread(None, job))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "two writers would meet"
        may_fail.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    (entry,) = caplog.records
    assert entry.getMessage().startswith("storage: ")
    assert entry.getMessage().endswith("job failed: no")
