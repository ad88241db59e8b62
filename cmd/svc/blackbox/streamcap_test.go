package blackbox

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// SVC_TENANT_STREAMS bounds a tenant's open event streams. A closed stream frees its place at once, and another
// tenant has its own limit.
func TestStreamsPerTenantAreBounded(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	n := newNode(t, "SVC_TENANT_STREAMS=2")
	n.start()
	c := n.tenant("streams")
	run := c.runOnce(t, ctx, c.publish(t, "Slow", simulatedModel), "/delay 100ms\n/tokens 1000")
	open := func(c *caller, run string) (status int, close func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(ctx)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+"/v1/runs/"+run+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.Key)
		req.Header.Set("X-Tenant-Id", c.Tenant)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, func() { cancel(); resp.Body.Close() }
	}
	first, closeFirst := open(c, run)
	second, closeSecond := open(c, run)
	defer closeSecond()
	if first != 200 || second != 200 {
		t.Fatalf("%d and %d", first, second)
	}
	a := c.ask(t, ctx, 429, "GET", "/v1/runs/"+run+"/events", nil, nil)
	if a.code() != "RATE_LIMITED" || a.header.Get("Retry-After") != "1" {
		t.Errorf("%s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	other := n.tenant("other")
	if status, close := open(other, other.runOnce(t, ctx, other.publish(t, "Slow", simulatedModel), "/delay 100ms\n/tokens 1000")); status != 200 {
		t.Errorf("another tenant: %d", status)
	} else {
		defer close()
	}
	closeFirst()
	for range 3 { // a call refused for another reason takes no place
		eventually(t, ctx, "an unknown run is told", func() bool {
			a, err := c.do(ctx, "GET", "/v1/runs/"+c.Tenant+"/events", nil)
			return err == nil && a.status == 404
		})
	}
	eventually(t, ctx, "a closed stream is free", func() bool {
		status, close := open(c, run)
		defer close()
		return status == 200
	})
}
