"""Starts the whole shop in one terminal, and ends it with Ctrl-C: `make shop`.

All files are in a temporary folder, and all servers but the web server listen on sockets in this folder.
"""

import argparse
import asyncio
import contextlib
import errno
import os
import pathlib
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile

os.environ.setdefault("SHOP_STATE", f"{tempfile.gettempdir()}/sluice-shop-{secrets.token_hex(4)}")

import setup  # noqa: E402  after SHOP_STATE is known
from supervisor import Failed, Supervisor  # noqa: E402


def port_number(text):
    """For argparse."""
    if not 0 <= (number := int(text)) <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return number


def free_port(wanted):
    """`wanted`, or another one if it is in use."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return probe.getsockname()[1]
    raise OSError("no free port")


@contextlib.asynccontextmanager
async def shop(port, sale_in_s=20, say=lambda line: None, **environment):
    """The running shop: its supervisor. At the end of the block, all programs have ended and all files are removed.

    If the shop is canceled during this cleanup, for example because the terminal closes, the cleanup comes to its end first.
    """
    state = pathlib.Path(os.environ["SHOP_STATE"])
    supervisor = Supervisor(state, {"SHOP_PORT": str(port)} | environment)
    state.mkdir(mode=0o700)
    try:
        say("Creating a database in " + str(state))
        await setup.create_database(state)
        say("Starting MariaDB and two redis-servers with Sluice")
        await asyncio.gather(*(supervisor.start(**service) for service in setup.servers(state)))
        await setup.fill(sale_in_s)
        say("Starting the shop")
        await asyncio.gather(*(supervisor.start(**service) for service in setup.programs(port)))
        async with supervisor.control():
            yield supervisor
    finally:
        cleanup, is_canceled = asyncio.create_task(clean_up(supervisor, state)), False
        while not cleanup.done():
            try:
                await asyncio.shield(cleanup)
            except asyncio.CancelledError:
                is_canceled = True
        cleanup.result()  # raises what it raised
        if is_canceled:
            raise asyncio.CancelledError


async def clean_up(supervisor, state):
    await supervisor.stop()
    shutil.rmtree(state)


async def terminal_closes():
    """Returns when it closes. The kernel sends SIGHUP only to the leader of the session, and this can be `make`."""
    poll = select.poll()
    poll.register(sys.stdout, 0)  # reports a hangup and no other event
    while not poll.poll(0):
        await asyncio.sleep(1)


async def until_signal(work):
    """Runs `work`, and cancels it at the first Ctrl-C, or when the terminal closes. Further signals do not stop the cleanup."""
    task, loop = asyncio.create_task(work), asyncio.get_running_loop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)

    def end():
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, end)
    watcher = asyncio.create_task(terminal_closes()) if sys.stdout.isatty() and signal.SIGHUP in numbers else None
    if watcher:
        watcher.add_done_callback(lambda watcher: watcher.cancelled() or end())
    try:
        return await task
    finally:
        if watcher:
            watcher.cancel()


async def main():
    parser = argparse.ArgumentParser(description="Starts a shop with a flash sale. Ctrl-C ends it.")
    parser.add_argument("--port", type=port_number, default=8000, help="the port of the page, if it is free")
    parser.add_argument("--sale-in", type=int, default=30, metavar="SECONDS", help="when the flash sale begins")
    arguments = parser.parse_args()
    port = free_port(arguments.port)
    if arguments.port and port != arguments.port:
        print(f"Port {arguments.port} is in use. The shop chooses port {port}.", flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await until_signal(serve(port, arguments.sale_in))
    say("\nEverything has ended, and all files are removed.")


def say(line):
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno != errno.EIO:  # EIO: the terminal has closed, which ends the shop
            raise


async def serve(port, sale_in_s):
    """Until it is canceled."""
    async with shop(port, sale_in_s, say=say):
        say(f"\n  The shop is open: http://127.0.0.1:{port}\n\n  Ctrl-C ends it.")
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except Failed as error:
        sys.exit(str(error))
