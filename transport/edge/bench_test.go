package edge

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strconv"
	"testing"

	"github.com/valyala/fasthttp"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

type okAuth struct{ who Identity }

func (a okAuth) Authenticate(context.Context, Credentials) (Identity, error) { return a.who, nil }

// BenchmarkRequest is the path of one request without the network: a table row,
// authentication by a stub, body, schema, handler, answer.
func BenchmarkRequest(b *testing.B) {
	w := newWorld(b)
	w.srv.cfg.Auth = okAuth{Identity{Tenant: w.tenant, Role: lifecycle.RoleAdmin, Principal: "apikey:x"}}
	const post = `{"agent_id":"0198c0de-0000-7000-8000-000000000000","title":"a title","meta":{"a":[1,2,3,4,5]}}`
	for name, request := range map[string]string{
		"GET":  "GET /v1/threads/" + w.thread.String() + " HTTP/1.1\r\nHost: x\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer member\r\nX-Tenant-Id: " + w.tenant.String() + "\r\n\r\n",
		"POST": "POST /v1/threads HTTP/1.1\r\nHost: x\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer member\r\nX-Tenant-Id: " + w.tenant.String() + "\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(post)) + "\r\n\r\n" + post,
	} {
		b.Run(name, func(b *testing.B) {
			var fc fasthttp.RequestCtx
			fc.Init(&fasthttp.Request{}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil)
			src := &loop{head: request}
			r := bufio.NewReaderSize(src, 16<<10)
			b.ReportAllocs()
			for b.Loop() {
				fc.Request.Reset()
				fc.Response.Reset()
				if err := fc.Request.Header.Read(r); err != nil {
					b.Fatal(err)
				}
				if name == "POST" {
					if err := fc.Request.ContinueReadBodyStream(r, 8<<10, false); err != nil {
						b.Fatal(err)
					}
				}
				w.srv.handle(&fc)
				if s := fc.Response.StatusCode(); s != http.StatusOK {
					b.Fatalf("%d %s", s, fc.Response.Body())
				}
			}
		})
	}
}

// loop is a connection that sends one request for ever.
type loop struct {
	head string
	at   int
}

func (l *loop) Read(b []byte) (int, error) {
	n := copy(b, l.head[l.at:])
	l.at = (l.at + n) % len(l.head)
	return n, nil
}

// BenchmarkRoundTrip is one request over a loopback connection.
func BenchmarkRoundTrip(b *testing.B) {
	w := newWorld(b)
	w.srv.cfg.Auth = okAuth{Identity{Tenant: w.tenant, Role: lifecycle.RoleAdmin, Principal: "apikey:x", Key: id.KeyID{}}}
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	request := []byte("GET /v1/threads/" + w.thread.String() + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer member\r\nX-Tenant-Id: " + w.tenant.String() + "\r\n\r\n")
	var resp fasthttp.Response
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		if err := resp.Read(r); err != nil {
			b.Fatal(err)
		}
	}
}
