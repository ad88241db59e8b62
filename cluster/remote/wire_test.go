package remote

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"agentsvc/cluster"
	"agentsvc/cluster/remote/wire"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// ownCert is a certificate of a key that is not the cluster's.
func ownCert(t *testing.T) tls.Certificate {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func clientConfig(t *testing.T, secret string) *tls.Config {
	t.Helper()
	_, c, err := configs(secret)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dialAs(t *testing.T, addr string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestStrangersGetNothing(t *testing.T) {
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"echo": func(cluster.Context, any) {
		t.Error("a stranger's message was received")
	}}})
	open := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	forged := open.Clone()
	forged.Certificates = []tls.Certificate{ownCert(t)}
	old := clientConfig(t, secret)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, row := range []struct {
		name  string
		creds credentials.TransportCredentials
	}{
		{"a client with another secret", credentials.NewTLS(clientConfig(t, strings.Repeat("another secret ", 4)))},
		{"a client without certificate", credentials.NewTLS(open)},
		{"a client with a certificate of its own", credentials.NewTLS(forged)},
		{"a client of TLS 1.2 with the right key", credentials.NewTLS(old)},
		{"a client in plain text", insecure.NewCredentials()},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for _, method := range []string{wire.Peer_Link_FullMethodName, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
				stream, err := dialAs(t, b.addr, row.creds).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
				if err == nil {
					_ = stream.SendMsg(&wire.Batch{Hello: &wire.Hello{From: b.id.UUID[:], To: b.id.UUID[:], Major: 1}})
					err = stream.RecvMsg(&wire.Batch{})
				}
				if status.Code(err) != codes.Unavailable {
					t.Fatalf("%s: err = %v", method, err)
				}
			}
		})
	}
	t.Run("bytes of no protocol", func(t *testing.T) {
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 512)
		n, _ := c.Read(answer)
		if bytes.Contains(answer[:n], []byte("HTTP")) {
			t.Fatalf("the answer was %q", answer[:n])
		}
	})
	t.Run("a member is no client of a server with another key", func(t *testing.T) {
		a := startMember(t, setup{})
		imposter, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: forged.Certificates, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer imposter.Close()
		got := make(chan int, 16)
		go func() {
			for {
				c, err := imposter.Accept()
				if err != nil {
					return
				}
				n, _ := c.Read(make([]byte, 64))
				got <- n
				c.Close()
			}
		}()
		m := newMember()
		a.SetPeers(map[id.MemberID]string{m: imposter.Addr().String()})
		if err := a.Remote.Tell(m, at(a, "echo"), ping{}); err != nil {
			t.Fatal(err)
		}
		if n := <-got; n != 0 {
			t.Fatalf("it sent %d bytes", n)
		}
	})
	t.Run("a member offers no other method", func(t *testing.T) {
		conn := dialAs(t, b.addr, credentials.NewTLS(clientConfig(t, secret)))
		for _, method := range []string{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Check"} {
			if err := conn.Invoke(t.Context(), method, &wire.Batch{}, &wire.Batch{}); status.Code(err) != codes.Unimplemented {
				t.Fatalf("%s: err = %v", method, err)
			}
		}
	})
}

func TestASecretHasAtLeast32Characters(t *testing.T) {
	l := listen(t)
	defer l.Close()
	_, err := New(Config{Self: newMember(), Listen: l, Codec: newCodec(), Secret: strings.Repeat("x", 31)})
	if err == nil || strings.Contains(err.Error(), "xxx") {
		t.Fatalf("err = %v", err)
	}
}

// raw is a member of another version: a stream on which a test says what it likes.
type raw struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[wire.Batch, wire.Batch]
}

func dialRaw(t *testing.T, b *member, hello *wire.Hello) *raw {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := wire.NewPeerClient(dialAs(t, b.addr, credentials.NewTLS(clientConfig(t, secret)))).Link(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{t, stream}
	r.send(&wire.Batch{Hello: hello})
	return r
}

func (r *raw) send(b *wire.Batch) {
	r.t.Helper()
	if err := r.stream.Send(b); err != nil {
		r.t.Fatal(err)
	}
}

// next is the next envelope; beats are passed over.
func (r *raw) next() (*wire.Envelope, error) {
	for {
		b, err := r.stream.Recv()
		if err != nil {
			return nil, err
		}
		if len(b.Envelopes) > 0 {
			return b.Envelopes[0], nil
		}
	}
}

func helloTo(b *member) *wire.Hello {
	from := newMember()
	return &wire.Hello{From: from.UUID[:], To: b.id.UUID[:], Major: protocolMajor, Minor: protocolMinor, Number: 1}
}

// unknown is a field that no version knows yet.
func unknown() []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 900, protowire.BytesType), "from the future")
}

// cborOf is a body as another build may write it.
func cborOf(fields map[string]any) []byte {
	b, err := cbor.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return b
}

func TestVersionsSideBySide(t *testing.T) {
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"echo": echo}})
	ask := func() *wire.Envelope {
		return &wire.Envelope{Id: 1, Kind: wire.Kind_ASK, Address: wireAddress(at(b, "echo")), Type: "test_ping", Body: cborOf(map[string]any{"n": 4}), RemainingMs: 60_000}
	}
	newer := helloTo(b)
	newer.Minor, newer.Build = 99, "from the future"
	newer.ProtoReflect().SetUnknown(unknown())
	more := ask()
	more.Body = cborOf(map[string]any{"n": 4, "later": map[string]any{"deep": []int{1, 2}}})
	more.ProtoReflect().SetUnknown(unknown())
	later := ask()
	later.Kind = 77
	strange := ask()
	strange.Type = "test_later"
	for _, row := range []struct {
		name  string
		hello *wire.Hello
		send  *wire.Envelope
		want  string // of the reply's type
	}{
		{"the same version", helloTo(b), ask(), "test_ping"},
		{"a newer minor version", newer, ask(), "test_ping"},
		{"fields that are not known here", helloTo(b), more, "test_ping"},
		{"a kind of envelope that is not known here", helloTo(b), later, "error"},
		{"a type that is not known here", helloTo(b), strange, "cluster/unknown_type"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := dialRaw(t, b, row.hello)
			if first, err := r.stream.Recv(); err != nil || !bytes.Equal(first.GetHello().GetFrom(), b.id.UUID[:]) {
				t.Fatalf("hello %v, %v", first, err)
			}
			r.send(&wire.Batch{Envelopes: []*wire.Envelope{row.send}})
			e, err := r.next()
			if err != nil || e.Id != 1 || e.Kind != wire.Kind_REPLY || e.Type != row.want {
				t.Fatalf("got %v, %v", e, err)
			}
			if row.want == "test_ping" {
				var p ping
				if err := cbor.Unmarshal(e.Body, &p); err != nil || p.N != 4 {
					t.Fatalf("body %x, %v", e.Body, err)
				}
			}
		})
	}
}

func TestAStreamThatIsMalformedEndsAlone(t *testing.T) {
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"echo": echo}})
	good := func() *wire.Envelope {
		return &wire.Envelope{Id: 1, Kind: wire.Kind_ASK, Address: wireAddress(at(b, "echo")), Type: "test_ping", Body: cborOf(map[string]any{}), RemainingMs: 60_000}
	}
	bystander := dialRaw(t, b, helloTo(b))
	if _, err := bystander.stream.Recv(); err != nil {
		t.Fatal(err)
	}
	other, future, wrong := helloTo(b), helloTo(b), helloTo(b)
	elsewhere := newMember()
	other.To = elsewhere.UUID[:]
	future.Major = protocolMajor + 1
	wrong.From = []byte("short")
	for _, row := range []struct {
		name  string
		first *wire.Batch
		then  *wire.Envelope
		code  codes.Code
	}{
		{"no hello", &wire.Batch{Envelopes: []*wire.Envelope{good()}}, nil, codes.InvalidArgument},
		{"a hello of nobody", &wire.Batch{Hello: wrong}, nil, codes.InvalidArgument},
		{"a hello to another member", &wire.Batch{Hello: other}, nil, codes.NotFound},
		{"a hello of another major version", &wire.Batch{Hello: future}, nil, codes.FailedPrecondition},
		{"an ask without id", &wire.Batch{Hello: helloTo(b)}, &wire.Envelope{Kind: wire.Kind_ASK, Address: good().Address}, codes.InvalidArgument},
		{"an ask without address", &wire.Batch{Hello: helloTo(b)}, &wire.Envelope{Id: 1, Kind: wire.Kind_ASK}, codes.InvalidArgument},
		{"an id of seven bytes", &wire.Batch{Hello: helloTo(b)}, &wire.Envelope{Kind: wire.Kind_TELL,
			Address: &wire.Address{Kind: "echo", Tenant: make([]byte, 16), Id: make([]byte, 7)}}, codes.InvalidArgument},
		{"a call of no service", &wire.Batch{Hello: helloTo(b)}, &wire.Envelope{Id: 1, Kind: wire.Kind_CALL}, codes.InvalidArgument},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := dialRaw(t, b, row.first.GetHello())
			if row.then != nil {
				r.send(&wire.Batch{Envelopes: []*wire.Envelope{row.then}})
			}
			var err error
			for err == nil {
				_, err = r.next()
			}
			if status.Code(err) != row.code {
				t.Fatalf("err = %v", err)
			}
		})
	}
	bystander.send(&wire.Batch{Envelopes: []*wire.Envelope{
		{Kind: wire.Kind_TELL, Address: good().Address, Type: "nobody_knows"},
		{Kind: wire.Kind_REPLY, Id: 9},
		{Kind: wire.Kind_ASK, Id: 2, Address: good().Address, Type: "test_ping", Body: cborOf(map[string]any{"n": 4})[:2]},
		good(),
	}})
	var types []string
	for len(types) < 2 {
		batch, err := bystander.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Envelopes {
			types = append(types, e.Type)
		}
	}
	if types[0] != "error" || types[1] != "test_ping" {
		t.Fatalf("another stream was answered %v", types)
	}
}

func TestTheNewestStreamOfAMemberCounts(t *testing.T) {
	b := startMember(t, setup{kinds: map[string]func(cluster.Context, any){"echo": echo}})
	hello := helloTo(b)
	open := func(number uint64) (*raw, error) {
		h := proto.CloneOf(hello)
		h.Number = number
		r := dialRaw(t, b, h)
		_, err := r.stream.Recv()
		return r, err
	}
	first, err := open(5)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(6); err != nil {
		t.Fatal(err)
	}
	if _, err := first.next(); status.Code(err) != codes.Aborted {
		t.Fatalf("the former stream ended with %v", err)
	}
	if _, err := open(5); status.Code(err) != codes.Unavailable {
		t.Fatalf("a stream that came late ended with %v", err)
	}
}

// A member that is alive and sends, but does not read its answers.
func TestAMemberThatDoesNotReadIsCut(t *testing.T) {
	b := startMember(t, setup{})
	conn, err := grpc.NewClient("passthrough:///"+b.addr, grpc.WithTransportCredentials(credentials.NewTLS(clientConfig(t, secret))),
		grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16)) // not to grow by itself
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := wire.NewPeerClient(conn).Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{t, stream}
	r.send(&wire.Batch{Hello: helloTo(b)})
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	asks := &wire.Batch{}
	for range maxBatch {
		asks.Envelopes = append(asks.Envelopes, &wire.Envelope{Id: 1, Kind: 77}) // what is cheapest to answer
	}
	for n := 0; n < 2*maxQueued; n += maxBatch {
		if err := stream.Send(asks); err != nil {
			break // it was cut
		}
	}
	testkit.Eventually(t, "the stream is cut", func() bool {
		b.Remote.mu.RLock()
		defer b.Remote.mu.RUnlock()
		return len(b.Remote.sessions) == 0
	})
}

func FuzzEnvelope(f *testing.F) {
	c := newCodec()
	r := &Remote{codec: c}
	name, body, err := c.Encode(ping{N: 1})
	if err != nil {
		f.Fatal(err)
	}
	good, err := proto.Marshal(&wire.Batch{Envelopes: []*wire.Envelope{{
		Id: 1, Kind: wire.Kind_ASK, Type: name, Body: body, Address: &wire.Address{Kind: "k", Tenant: make([]byte, 16), Id: make([]byte, 16)},
	}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		var batch wire.Batch
		if proto.Unmarshal(b, &batch) != nil {
			return
		}
		for _, e := range batch.Envelopes {
			if a, ok := address(e.GetAddress()); ok {
				if back, ok := address(wireAddress(a)); !ok || back != a {
					t.Fatalf("%v became %v", a, back)
				}
			}
			if v, err := r.decode(e.GetType(), e.GetBody()); err == nil {
				if _, _, err := r.encode(v); err != nil {
					t.Fatalf("%v cannot be sent on: %v", v, err)
				}
			}
			deadline(time.Now(), e.GetRemainingMs())
		}
	})
}
