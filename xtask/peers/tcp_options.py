"""What TCP moves between two hosts, by congestion control and buffer size of the sending socket.

    python3 xtask/peers/tcp_options.py [--mib 64] [--turns 7] [--json FILE]

The hosts are two network namespaces with a pair of veth devices between them, made for this and removed afterwards: it needs
root and iproute2. The median of so many transfers, each acknowledged by one byte, after one that does not count.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

PORT = 7411
NAMES = ("flodl-a", "flodl-b")
ADDRESSES = ("10.231.0.1", "10.231.0.2")
PIECE = 256 << 10
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)


def sink(size, buffer):
    """Takes transfers of `size` bytes and acknowledges each."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    listener.bind((ADDRESSES[1], PORT))
    listener.listen(1)
    stream, _ = listener.accept()
    room = bytearray(PIECE)
    while True:
        left = size
        while left:
            came = stream.recv_into(room, min(PIECE, left))
            if came == 0:
                return
            left -= came
        stream.sendall(b"x")


def source(size, buffer, control, turns):
    """Sends `turns` transfers and prints what each took."""
    stream = socket.socket()
    stream.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, control.encode())
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if buffer:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    for _ in range(100):
        try:
            stream.connect((ADDRESSES[1], PORT))
            break
        except OSError:
            time.sleep(0.05)
    piece, took = bytes(PIECE), []
    for _ in range(turns + 1):
        began = time.perf_counter()
        for _ in range(size // PIECE):
            stream.sendall(piece)
        stream.recv(1)
        took.append(time.perf_counter() - began)
    print(json.dumps(took[1:]))


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def make_hosts():
    for name in NAMES:
        ip("netns", "add", name)
    ip("link", "add", "flodl-va", "type", "veth", "peer", "name", "flodl-vb")
    for name, device, address in zip(NAMES, ("flodl-va", "flodl-vb"), ADDRESSES):
        ip("link", "set", device, "netns", name)
        ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
        ip("-n", name, "link", "set", device, "up")
        ip("-n", name, "link", "set", "lo", "up")


def measure(size, buffer, control, turns):
    def inside(name, *words):
        line = ["ip", "netns", "exec", name, sys.executable, os.path.abspath(__file__), *map(str, words)]
        return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)

    taker = inside(NAMES[1], "--sink", size, buffer)
    giver = inside(NAMES[0], "--source", size, buffer, control, turns)
    took = json.loads(giver.communicate(timeout=300)[0])
    taker.communicate(timeout=60)
    middle = statistics.median(took)
    return {"control": control, "buffer": buffer, "bytes": size, "median_s": middle, "min_s": min(took), "max_s": max(took)}


def main():
    if sys.argv[1:2] == ["--sink"]:
        return sink(*map(int, sys.argv[2:]))
    if sys.argv[1:2] == ["--source"]:
        size, buffer, control, turns = sys.argv[2:]
        return source(int(size), int(buffer), control, int(turns))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json")
    args = parser.parse_args()
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control", encoding="ascii") as offered:
        controls = offered.read().split()
    rows = []
    try:
        make_hosts()
        for buffer in (0, 256 << 10, 1 << 20, 4 << 20):
            for control in controls:
                row = measure(args.mib << 20, buffer, control, args.turns)
                rows.append(row)
                rate = row["bytes"] / row["median_s"] / 1e9
                asked = f"{buffer >> 10} KiB" if buffer else "as it comes"
                print(f"{control:6} {asked:>12} {rate:6.2f} GB/s  {row['min_s'] * 1e3:.1f}..{row['max_s'] * 1e3:.1f} ms")
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False)
    if args.json:
        with open(args.json, "w", encoding="ascii") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
