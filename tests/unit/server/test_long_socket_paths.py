"""Loop and server meet at their socket, however long the name of the state folder is."""

import asyncio
import pathlib
import selectors

from reconciler.controller import server_link
from reconciler.server import loop_link


async def _connects(path: pathlib.Path) -> bool:
    connected = asyncio.Event()
    client = loop_link.LinkClient(
        path,
        on_update=lambda _: None,
        on_connect=connected.set,
        on_published=lambda _: None,
        on_answer=lambda _: None,
    )
    running = asyncio.create_task(client.run())
    try:
        async with asyncio.timeout(30):
            await connected.wait()
        return client.connected
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_long_folder_keeps_nobody_apart(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    with selectors.DefaultSelector() as selector:
        link = server_link.LinkServer(folder / "loop.sock", selector)
        try:
            assert asyncio.run(_connects(folder / "loop.sock"))
        finally:
            link.close()
