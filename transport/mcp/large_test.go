package mcp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/turn"
)

// counted counts the places that were taken.
type counted struct {
	*turn.Places
	taken atomic.Int32
}

func (c *counted) Take(ctx context.Context, t id.TenantID) error {
	err := c.Places.Take(ctx, t)
	if err == nil {
		c.taken.Add(1)
	}
	return err
}

// What large answers take of a node is bounded, and a tenant has a part of it: an answer waits
// for its place while the small ones and those of other tenants go on.
func TestLargeAnswersHaveAPartOfTheNode(t *testing.T) {
	large := strings.Repeat("x", smallAnswer)
	finish := make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.call = func(w http.ResponseWriter, r *http.Request, m message) {
			switch m.Params.Name {
			case "echo":
				text(w, m, large)
			case "write": // almost all of it, and the end once the test says so
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"content":[{"type":"text","text":"`+large)
				w.(http.Flusher).Flush()
				select {
				case <-finish:
				case <-r.Context().Done():
				}
				_, _ = io.WriteString(w, `"}]}}`)
			}
		}
		f.list = func(w http.ResponseWriter, _ *http.Request, m message) {
			result(w, m, `{"tools":[`+echoTool+`,{"name":"write","inputSchema":{"type":"object"}},{"name":"small","inputSchema":{"type":"object"}}]}`)
		}
	})
	small := newFake(t, nil)
	places := &counted{Places: turn.New(2, 1)}
	g := gateway(t, func(c *Config) { c.Large = places })
	busy := target(f.URL)
	of := func(who Target, endpoint string) Target {
		to := target(endpoint)
		to.Tenant = who.Tenant
		return to
	}
	type answered struct {
		a   Answer
		err error
	}
	call := func(ctx context.Context, to Target, name string) <-chan answered {
		got := make(chan answered, 1)
		go func() {
			a, err := g.Call(ctx, to, name, []byte(`{}`))
			got <- answered{a, err}
		}()
		return got
	}
	first := call(t.Context(), busy, "write")
	testkit.Eventually(t, "the first has its place", func() bool { return places.taken.Load() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	second := call(ctx, busy, "echo")
	testkit.Eventually(t, "the second waits for a place", places.Wanted)
	if r := <-call(t.Context(), of(busy, small.URL), "echo"); r.err != nil {
		t.Errorf("a small answer: %v", r.err)
	}
	if r := <-call(t.Context(), target(f.URL), "echo"); r.err != nil || len(r.a.Content) != len(large) {
		t.Errorf("another tenant's: %d bytes, %v", len(r.a.Content), r.err)
	}
	cancel()
	var e *Error
	if r := <-second; !errors.As(r.err, &e) || e.Kind != Cancelled || !e.MaybeRan {
		t.Errorf("who leaves while it waits: %v", r.err)
	}
	third := call(t.Context(), busy, "echo")
	testkit.Eventually(t, "the third waits for a place", places.Wanted)
	close(finish)
	for name, c := range map[string]<-chan answered{"first": first, "third": third} {
		if r := <-c; r.err != nil || len(r.a.Content) != len(large) {
			t.Errorf("the %s: %d bytes, %v", name, len(r.a.Content), r.err)
		}
	}
	var give func()
	keeping := tool.Keeping(t.Context(), func(g func()) { give = g })
	if r := <-call(keeping, busy, "echo"); r.err != nil || give == nil || places.Try(busy.Tenant) {
		t.Fatal("the caller does not keep the place of its answer: ", r.err)
	}
	give()
	others := id.TenantID{UUID: id.NewAnywhere()}
	if places.Wanted() || !places.Try(busy.Tenant) || !places.Try(others) {
		t.Error("a place is lost")
	}
}

// Only what an answer keeps counts: a server that tells much of its progress, event by event,
// needs no place.
func TestProgressNeedsNoPlace(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.call = func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 20 {
				_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"`+strings.Repeat("x", smallAnswer/8)+`"}}`+"\n\n")
			}
			_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"content":[{"type":"text","text":"done"}]}}`+"\n\n")
		}
	})
	places := turn.New(1, 1)
	g := gateway(t, func(c *Config) { c.Large = places })
	to := target(f.URL)
	if !places.Try(to.Tenant) {
		t.Fatal("no place")
	}
	if a, err := g.Call(t.Context(), to, "echo", []byte(`{}`)); err != nil || a.Content != "done" {
		t.Errorf("%q, %v", a.Content, err)
	}
}
