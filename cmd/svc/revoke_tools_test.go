package main

import (
	"fmt"
	"net/http"
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
	ctx := within(t, 20*time.Second)
	var lists atomic.Int32
	h := newToolHost(t)
	h.set(func(h *toolHost) {
		h.list = func(w http.ResponseWriter, _ *http.Request, m rpc) {
			lists.Add(1)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}`, m.ID, lookupTool)
		}
	})
	guard := egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	gateway := mcp.New(mcp.Config{Guard: guard, Log: zerolog.Nop()})
	t.Cleanup(func() { gateway.Close(ctx) })
	b := newToolbox(nil, nil, gateway, guard, &Config{}, zerolog.Nop())
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
	b.down[asked(&to)] = downtime{until: time.Now().Add(time.Hour)}
	b.ForgetAccess(to.Tenant)
	listed(1) // a list grants nothing
	b.ForgetAll()
	listed(2)
	if len(b.down) != 0 {
		t.Fatal("a server that was down is not asked")
	}
}
