package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"agentsvc/schemas/testkit"
	"agentsvc/transport/mcp/demo"
)

// direct is an mcp-go client of its own with a plain HTTP client.
func direct(b *testing.B, url string) func() {
	b.Helper()
	hc := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	tr, err := transport.NewStreamableHTTP(url, transport.WithHTTPBasicClient(hc), transport.WithHTTPLogger(silent),
		transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + secret}))
	if err != nil {
		b.Fatal(err)
	}
	c := client.NewClient(tr)
	b.Cleanup(func() { c.Close(); hc.CloseIdleConnections() })
	if err := c.Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	if _, err := c.Initialize(context.Background(), mcp.InitializeRequest{}); err != nil {
		b.Fatal(err)
	}
	var r mcp.CallToolRequest
	r.Params.Name, r.Params.Arguments = "orders.get", map[string]any{"order_id": "1001"}
	return func() {
		if _, err := c.CallTool(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

// percentiles reports p50 and p99 under a name.
func percentiles(b *testing.B, name string, took []time.Duration) time.Duration {
	slices.Sort(took)
	p50 := took[len(took)/2]
	b.ReportMetric(float64(p50.Nanoseconds())/1e3, name+"-p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, name+"-p99-µs")
	return p50
}

// BenchmarkGateway has a budget of 1 ms at p50 above a direct mcp-go
// call: both in turn, in one run, against one server.
func BenchmarkGateway(b *testing.B) {
	s := newServer(b, demo.New(secret).Handler())
	plain := direct(b, s)
	g := gateway(b, nil)
	to := target(s)
	args := json.RawMessage(`{"order_id":"1001"}`)
	through := func() { call(b, g, to, "orders.get", string(args)) }
	plain()
	through()
	var direct, gated []time.Duration
	measure := func(f func(), into *[]time.Duration) {
		began := time.Now()
		f()
		*into = append(*into, time.Since(began))
	}
	for b.Loop() {
		measure(plain, &direct)
		measure(through, &gated)
	}
	added := percentiles(b, "gateway", gated) - percentiles(b, "direct", direct)
	b.ReportMetric(float64(added.Nanoseconds())/1e3, "added-p50-µs")
	if len(gated) > 100 && added > time.Millisecond {
		b.Errorf("the gateway adds %v", added)
	}
}

// BenchmarkBesideASlowServer shows that 64 concurrent calls to one slow
// server do not delay those to another: its calls alone and beside them.
func BenchmarkBesideASlowServer(b *testing.B) {
	release := make(chan struct{})
	slow := newFake(b, func(f *fake) {
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) { <-release; text(w, m, "late") }
	})
	s := newServer(b, demo.New(secret).Handler())
	g := gateway(b, nil)
	to := target(s)
	quick := func(into *[]time.Duration) {
		began := time.Now()
		call(b, g, to, "orders.get", `{"order_id":"1001"}`)
		*into = append(*into, time.Since(began))
	}
	var warm, alone, beside []time.Duration
	for range 100 {
		quick(&warm)
	}
	for range 500 {
		quick(&alone)
	}
	hung := target(slow.URL)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() { call(b, g, hung, "write", `{}`) })
	}
	testkit.Eventually(b, "all 64 are there", func() bool { return slow.count("tools/call") == 64 })
	for b.Loop() {
		quick(&beside)
	}
	close(release)
	wg.Wait()
	before, after := percentiles(b, "alone", alone), percentiles(b, "beside", beside)
	b.ReportMetric(float64(after)/float64(before), "ratio-p50")
}

// BenchmarkTools is the hot path before each turn of a model: a cached list.
func BenchmarkTools(b *testing.B) {
	f := newFake(b, nil)
	g := gateway(b, nil)
	to := target(f.URL)
	for b.Loop() {
		if _, err := g.Tools(context.Background(), to); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMask is what each result costs, by its size.
func BenchmarkMask(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := string(make([]byte, size))
			for b.Loop() {
				newMask(secret).Text(s)
			}
		})
	}
}
