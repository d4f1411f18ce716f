"""A web server, and clients that keep their connections: each answer is the number of the request on its connection, and what was posted before."""
import http.client
import http.server
import os
import signal
import socket
import socketserver
import threading
import time

PATH = "/srv/web.sock"
signal.signal(signal.SIGTERM, lambda *_: os._exit(3))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.number, self.kept = 0, b""

    def do_POST(self):
        self.number += 1
        before, self.kept = self.kept, self.rfile.read(int(self.headers["Content-Length"]))
        answer = b"%d %b" % (self.number, before)
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def address_string(self):
        return "client"

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


class Connection(http.client.HTTPConnection):
    def connect(self):
        assert not getattr(self, "connected", False), "a connection was lost"
        self.connected = True
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(PATH)


server = Server(PATH, Handler)
if os.fork() == 0:
    server.serve_forever()
server.socket.close()
counts = [0] * 8


def client(which):
    connection, before = Connection("web"), b""
    while True:
        counts[which] += 1
        body = os.urandom(6000).hex().encode()
        connection.request("POST", "/", body)
        assert connection.getresponse().read() == b"%d %b" % (counts[which], before), counts[which]
        before = body
        time.sleep(0.002)


clients = [threading.Thread(target=client, args=(which,), daemon=True) for which in range(len(counts))]
for one in clients:
    one.start()
while all(one.is_alive() for one in clients):
    least = min(counts)
    time.sleep(0.05)
    if min(counts) > least:
        print(min(counts), flush=True)
