package demo_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
	"agentsvc/transport/mcp/demo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func desk(t *testing.T) (*demo.Server, func(name, args string) (mcp.Answer, error), mcp.Target, *mcp.Gateway) {
	t.Helper()
	d := demo.New("let-me-in")
	s := httptest.NewServer(d.Handler())
	t.Cleanup(s.Close)
	g := mcp.New(mcp.Config{Guard: egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})})
	t.Cleanup(func() { g.Close(context.Background()) })
	to := mcp.Target{
		Tenant: id.TenantID{UUID: id.NewAnywhere()}, Server: id.ServerID{UUID: id.NewAnywhere()}, Slug: "shop",
		Transport: tool.HTTP, Endpoint: s.URL + "/mcp", AuthKind: tool.AuthBearer, Version: time.Unix(1, 0),
		Credential: func(context.Context) (string, error) { return "let-me-in", nil },
	}
	return d, func(name, args string) (mcp.Answer, error) {
		return g.Call(context.Background(), to, name, json.RawMessage(args))
	}, to, g
}

func TestTools(t *testing.T) {
	_, _, to, g := desk(t)
	specs, err := g.Tools(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]tool.Spec{}
	for _, s := range specs {
		got[s.Name] = s
	}
	if len(got) != 3 || !got["orders.list"].ReadOnly || !got["orders.get"].ReadOnly || got["orders.refund"].ReadOnly || got["orders.refund"].Idempotent {
		t.Fatalf("%+v", specs)
	}
	if !tool.TakesKey(got["orders.refund"].Schema) || tool.TakesKey(got["orders.get"].Schema) {
		t.Fatal("orders.refund takes a key, orders.get none")
	}
}

func TestCalls(t *testing.T) {
	d, call, _, _ := desk(t)
	for _, c := range []struct {
		name, tool, args, want string
		failure                bool
		refunds                int
	}{
		{"list", "orders.list", `{}`, `"1004"`, false, 0},
		{"list by status", "orders.list", `{"status":"shipped"}`, `"1002"`, false, 0},
		{"list of nobody", "orders.list", `{"customer":"Nobody"}`, `{"orders":[]}`, false, 0},
		{"get", "orders.get", `{"order_id":"1001"}`, `"total":103`, false, 0},
		{"get unknown", "orders.get", `{"order_id":"7"}`, `{"error":"NOT_FOUND","message":"there is no such order"}`, true, 0},
		{"refund", "orders.refund", `{"order_id":"1001","amount":3,"reason":"late","idempotency_key":"k1"}`, `"refund_id":"R-1"`, false, 1},
		{"the same key again", "orders.refund", `{"order_id":"1001","amount":3,"reason":"late","idempotency_key":"k1"}`, `"refund_id":"R-1"`, false, 1},
		{"another key", "orders.refund", `{"order_id":"1001","amount":3,"reason":"late","idempotency_key":"k2"}`, `"left":97`, false, 2},
		{"no key", "orders.refund", `{"order_id":"1001","amount":7,"reason":"late"}`, `"left":90`, false, 3},
		{"too much", "orders.refund", `{"order_id":"1001","amount":90.01,"reason":"late","idempotency_key":"k3"}`, `"AMOUNT_TOO_HIGH"`, true, 3},
		{"a failure is replayed too", "orders.refund", `{"order_id":"1001","amount":1,"reason":"late","idempotency_key":"k3"}`, `"AMOUNT_TOO_HIGH"`, true, 3},
		{"nothing", "orders.refund", `{"order_id":"1001","amount":0,"reason":"late"}`, `"INVALID_AMOUNT"`, true, 3},
		{"an unknown order", "orders.refund", `{"order_id":"7","amount":1,"reason":"late"}`, `"NOT_FOUND"`, true, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := call(c.tool, c.args)
			if err != nil || a.IsError != c.failure || !strings.Contains(a.Content, c.want) {
				t.Fatalf("%+v %v", a, err)
			}
			if n := len(d.Refunds()); n != c.refunds {
				t.Fatalf("%d refunds", n)
			}
		})
	}
}

func TestOneKeyPaysOnceUnderConcurrency(t *testing.T) {
	d, call, _, _ := desk(t)
	answers := make([]string, 32)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			a, err := call("orders.refund", `{"order_id":"1002","amount":5,"reason":"x","idempotency_key":"k"}`)
			if err != nil {
				t.Error(err)
			}
			answers[i] = a.Content
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a != answers[0] {
			t.Fatalf("%s and %s", a, answers[0])
		}
	}
	if r := d.Refunds(); len(r) != 1 || r[0].Key != "k" || r[0].Amount != 5 {
		t.Fatalf("%+v", r)
	}
}

func TestAWrongTokenIsAnswered401WithAJSONRPCError(t *testing.T) {
	for _, shown := range []string{"", "Bearer", "Bearer let-me-i", "Basic let-me-in"} {
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(`{}`))
		if shown != "" {
			r.Header.Set("Authorization", shown)
		}
		w := httptest.NewRecorder()
		demo.New("let-me-in").Handler().ServeHTTP(w, r)
		var body struct {
			Error struct{ Code int }
		}
		if w.Code != 401 || json.Unmarshal(w.Body.Bytes(), &body) != nil || body.Error.Code == 0 {
			t.Errorf("%q: %d %s", shown, w.Code, w.Body)
		}
	}
}
