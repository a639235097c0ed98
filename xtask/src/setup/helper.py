"""The part of `cargo xtask setup` that the person's own Python does: look for torch, download, look into wheels, unpack.

Started as `python3 -c TEXT VERB ARGS`. Answers on the standard output, one line each:
  progress DONE TOTAL    bytes of a download or of an unpacking
  value JSON             the answer
  trouble KIND DETAIL    why there is none; KIND is one of denied, network, space, write, checksum, wheel
"""

import email
import errno
import fcntl
import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
import zipfile
import zlib

CHUNK = 1 << 20
# Tries that bring nothing, in a row, before a download is given up, and the seconds a silent server is given.
TRIES = 4
SILENCE_S = 60


class Trouble(Exception):
    def __init__(self, kind, detail):
        super().__init__(detail)
        self.kind = kind


def say(*words):
    try:
        print(*words, flush=True)
    except BrokenPipeError:
        # Whoever asked is gone, and with them all reason to go on. Not an error of the work at hand, which might retry.
        os._exit(1)


def local(error, path):
    """The trouble behind an error of this machine's own files."""
    kind = "space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "write"
    return Trouble(kind, f"{path}: {error.strerror}")


def torch():
    # Found without being imported, which would take seconds.
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def free(folder):
    return shutil.disk_usage(folder).free


def opener(certificates, proxy):
    context = ssl.create_default_context()
    candidates = [certificates, os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE")]
    named = next((path for path in candidates if path), None)
    if named is None:
        # What pip itself trusts, where the system's own certificates are not where Python looks for them.
        try:
            from pip._vendor import certifi

            named = certifi.where()
        except ImportError:
            pass
    if named:
        try:
            context.load_verify_locations(**{"capath" if os.path.isdir(named) else "cafile": named})
        except OSError as error:
            raise Trouble("network", f"the certificates at {named} cannot be read: {error}") from error
    handlers = [urllib.request.HTTPSHandler(context=context)]
    if proxy:
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)


def receive(connect, url, file):
    """One try: appends what the server sends behind what is there. Returns whether the file is complete."""
    have = file.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = connect.open(request, timeout=SILENCE_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            return True
        kind = "denied" if error.code in (401, 403, 407) else "network"
        raise Trouble(kind, f"the server answered {error.code} {error.reason}") from error
    with answer:
        if have and answer.status != 206:
            file.truncate(0)
            have = file.seek(0)
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        while chunk := answer.read(CHUNK):
            try:
                file.write(chunk)
            except OSError as error:
                raise local(error, file.name) from error
            have += len(chunk)
            say("progress", have, max(total, have))
        return total in (0, have)


def download(url, path, checksum, certificates, proxy):
    """Brings the file at the URL to `path`, going on from `path`.part where that is there, and checks it."""
    part = path + ".part"
    try:
        file = open(part, "a+b")
    except OSError as error:
        raise local(error, part) from error
    with file:
        # A downloader whose setup was killed is at it until it next speaks. It may have come to the end by then.
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(path):
            return
        connect = opener(certificates, proxy)
        idle = 0
        while True:
            before = file.seek(0, os.SEEK_END)
            why = "the connection ended early"
            try:
                if receive(connect, url, file):
                    break
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
                reason = getattr(error, "reason", error)
                why = str(reason) or type(error).__name__
                if isinstance(reason, ssl.SSLCertVerificationError):
                    # pip may have been told to trust this server all the same.
                    raise Trouble("denied", why) from error
            idle = 0 if file.seek(0, os.SEEK_END) > before else idle + 1
            if idle == TRIES:
                raise Trouble("network", why)
            time.sleep(idle)
        file.flush()
        file.seek(0)
        digest = hashlib.sha256()
        while chunk := file.read(CHUNK):
            digest.update(chunk)
        if digest.hexdigest() != checksum:
            os.remove(part)
            raise Trouble("checksum", f"expected {checksum}, got {digest.hexdigest()}")
    os.replace(part, path)


def members(path):
    with zipfile.ZipFile(path) as wheel:
        return [[entry.filename, entry.file_size] for entry in wheel.infolist() if not entry.is_dir()]


def requires(path):
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(wheel.read(name))
    return message.get_all("Requires-Dist") or []


def unpack(path, folder):
    """Unpacks the members named on the standard input, one `MEMBER<tab>TARGET` a line, into the folder."""
    plan = [line.rstrip("\n").split("\t") for line in sys.stdin]
    done = 0
    with zipfile.ZipFile(path) as wheel:
        total = sum(wheel.getinfo(member).file_size for member, _ in plan)
        for member, target in plan:
            target = os.path.join(folder, target)
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with wheel.open(member) as source, open(target, "wb") as sink:
                    while chunk := source.read(CHUNK):
                        sink.write(chunk)
                        done += len(chunk)
                        if len(chunk) == CHUNK:
                            say("progress", done, total)
            except OSError as error:
                raise local(error, target) from error
    say("progress", done, total)


def main(verb, *args):
    verbs = (torch, free, download, members, requires, unpack)
    try:
        say("value", json.dumps(next(known for known in verbs if known.__name__ == verb)(*args)))
    except Trouble as trouble:
        say("trouble", trouble.kind, " ".join(str(trouble).split()))
    except (zipfile.BadZipFile, KeyError, StopIteration, zlib.error, EOFError) as error:
        say("trouble", "wheel", " ".join(str(error).split()))
    except OSError as error:
        say("trouble", "write", " ".join(str(error).split()))


main(*sys.argv[1:])
