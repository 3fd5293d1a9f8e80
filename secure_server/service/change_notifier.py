"""Notification of calls that wait for a change."""

from __future__ import annotations

import asyncio


class Changes:
    """Notifier of the calls that wait on the event loop it was made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = asyncio.Event()
        self._closed = False

    def notify(self) -> None:
        """Wake all waiting calls. Callable from any thread; harmless once the loop is gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def next(self) -> asyncio.Event:
        """Return the next change. Take it *before* looking, so that no change in between is missed."""
        return self._next

    async def wait(self, change: asyncio.Event, seconds: float) -> bool:
        """Return True if ``change`` came within ``seconds``; False at once when closed."""
        if self._closed:
            return False
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await change.wait()
        except TimeoutError:
            return False
        return not self._closed

    def close(self) -> None:
        """Release every call that waits, now and later."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        change, self._next = self._next, asyncio.Event()
        change.set()
