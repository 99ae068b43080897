"""Ends with 0 if the gateway of this container answers the path with 200: healthcheck.py [/health/ready]."""

import http.client
import os
import sys

path = sys.argv[1] if len(sys.argv) > 1 else "/health/ready"
connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("MULGIL_PORT", "8000")), timeout=4)
try:
    connection.request("GET", path)
    status = connection.getresponse().status
except OSError:
    status = 0
sys.exit(status != http.client.OK)
