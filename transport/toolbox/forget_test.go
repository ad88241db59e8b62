package toolbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

// A node that may have missed changes asks tool servers anew what they offer, and
// those that were down before their time.
func TestTheToolboxForgetsAll(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var lists atomic.Int32
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		var asked struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		answer := ""
		switch asked.Method {
		case "initialize":
			answer = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"shop","version":"1"}}`
		case "tools/list":
			lists.Add(1)
			answer = `{"tools":[{"name":"orders.lookup","inputSchema":{"type":"object"}}]}`
		default: // a notification
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, asked.ID, answer)
	}))
	t.Cleanup(h.Close)
	guard := egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	gateway := mcp.New(mcp.Config{Guard: guard, Log: zerolog.Nop()})
	t.Cleanup(func() { gateway.Close(context.WithoutCancel(t.Context())) })
	b := New(Config{Gateway: gateway, Guard: guard, Log: zerolog.Nop()})
	to := mcp.Target{
		Tenant: id.TenantID{UUID: id.NewAnywhere()}, Server: id.ServerID{UUID: id.NewAnywhere()}, Slug: "shop",
		Transport: tool.HTTP, Endpoint: h.URL, AuthKind: tool.AuthNone,
	}
	listed := func(times int32) {
		t.Helper()
		for range 2 {
			specs, err := gateway.Tools(ctx, to)
			if err != nil || len(specs) != 1 || lists.Load() != times {
				t.Fatalf("%d lists, %v, %v", lists.Load(), specs, err)
			}
		}
	}
	listed(1)
	b.down[asked(&to)] = time.Now().Add(time.Hour)
	b.ForgetAccess(to.Tenant)
	listed(1) // a list grants nothing
	b.ForgetAll()
	listed(2)
	if len(b.down) != 0 {
		t.Fatal("a server that was down is not asked")
	}
}
