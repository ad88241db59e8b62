package blackbox

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/store"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
)

// open-parts.md, Rate limits; security.md, Edge: a call with a valid key is charged to its tenant only, whatever
// other calls come from its address, and whether or not this node has cached the key. Guesses are limited, and
// cost the database almost nothing.
func TestOtherCallsFromAnAddressDoNotLimitValidKeys(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	db := pgtest.New(t)
	database, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64 // bytes that the node has sent to the database
	between := newFront(t, func() (net.Conn, error) {
		c, err := net.Dial("unix", filepath.Join(database.Query().Get("host"), ".s.PGSQL.5432"))
		return metered{c, &asked}, err
	}, nil)
	n := newNode(t, calm, "SVC_DATABASE_URL="+atAddress(database, between.addr, "shared"), "SVC_RATE_CAPACITY=120", "SVC_RATE_REFILL=20")
	tenants := store.System(db.System(t), vault.New(vault.NewSecret32([32]byte{1})))
	clients := make([]*caller, 50)
	for i := range clients {
		made, err := tenants.CreateTenant(ctx, store.NewTenant{Name: "Tenant", OwnerEmail: "o@example.com", KeyName: "first"})
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = &caller{client.Client{Base: n.base, Key: made.Secret, Tenant: made.Tenant.String(), HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}}
	}
	passes := func(c *caller, method, path string, status int) {
		a, err := c.do(ctx, method, path, nil)
		if err != nil || a.status != status {
			t.Errorf("a valid key, %s %s: %v %s", method, path, err, a.whole())
		}
	}

	n.start()
	// A node that has just started gets all calls at once.
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() { passes(clients[i%len(clients)], "GET", "/v1/tenant", 200) })
	}
	all.Wait()

	// All other calls from the address, faster than its bucket refills.
	n.kill()
	n.start()
	anyone := n.stranger()
	guess := func() []string {
		return []string{"Authorization", "Bearer " + apikey.Mint(id.KeyID{UUID: id.NewAnywhere()}), "X-Tenant-Id", clients[0].Tenant}
	}
	none := []string{"Authorization", "", "X-Tenant-Id", ""}
	type call struct {
		method, path string
		header       func() []string
		body         any
	}
	noise := []call{
		{"GET", "/v1/tenant", func() []string { return none }, nil},
		{"GET", "/v1/tenant", guess, nil},
		{"GET", "/v1/nope", guess, nil},
		{"DELETE", "/v1/runs", func() []string { return none }, nil},
		{"GET", "/v1/tenant", func() []string { return []string{"Authorization", "Bearer svc_x", "X-Tenant-Id", clients[0].Tenant} }, nil},
		{"GET", "/v1/tenant", func() []string {
			return []string{"Authorization", "Bearer " + clients[1].Key, "X-Tenant-Id", clients[0].Tenant}
		}, nil},
		{"GET", "/v1/openapi.json", func() []string { return append(none, "If-None-Match", "x") }, nil},
		{"POST", "/hooks/" + id.NewAnywhere().String(), func() []string { return append(none, "X-Svc-Signature-256", "sha256=00") }, "{}"},
		{"GET", "/v1/embed/config", func() []string { return append(none, "X-Svc-Embed-Key", "svc_pk_x") }, nil},
		{"POST", "/v1/auth/login", func() []string { return append(none, "Content-Type", "application/json") }, object{"email": "o@example.com", "password": "no"}},
	}
	over := make(chan struct{})
	var limited atomic.Int64
	for _, c := range noise {
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				a, err := anyone.do(ctx, c.method, c.path, c.body, c.header()...)
				if err != nil || a.status >= 500 || a.status < 300 && c.path != "/v1/openapi.json" {
					t.Errorf("%s %s: %v %s", c.method, c.path, err, a.whole())
					return
				}
				if a.status == 429 {
					limited.Add(1)
				}
			}
		})
	}
	eventually(t, ctx, "the address has nothing left", func() bool { return limited.Load() > 100 })
	for i, c := range clients { // this process has cached none of them
		passes(c, "GET", "/v1/tenant", 200)
		passes(c, "GET", "/v1/nope", 404)
		passes(c, "PUT", "/v1/tenant", 405)
		if i%10 == 0 {
			passes(c, "GET", "/v1/runs", 200)
		}
	}
	close(over)
	all.Wait()

	// The cost of a flood of guesses alone for the database.
	began, at := time.Now(), asked.Load()
	eventually(t, ctx, "a second has passed", func() bool { return time.Since(began) >= time.Second })
	quiet := float64(asked.Load()-at) / time.Since(began).Seconds()
	began, at = time.Now(), asked.Load()
	const guesses = 3000
	var left, tries atomic.Int64
	left.Store(guesses)
	for range 32 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				a, err := anyone.do(ctx, "GET", "/v1/tenant", nil, guess()...)
				if err != nil || a.status != 401 && a.status != 429 {
					t.Errorf("a guess: %v %s", err, a.whole())
					return
				}
				if a.status == 401 {
					tries.Add(1)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	said := float64(asked.Load()-at) - quiet*took.Seconds()
	t.Logf("%d guesses in %s: %d answered 401, %.0f bytes to the database", guesses, took, tries.Load(), said)
	if most := int64(121 + 20*took.Seconds() + 32); tries.Load() > most {
		t.Errorf("%d guesses were judged, want at most %d", tries.Load(), most)
	}
	if most := 60*guesses + 400*(40*took.Seconds()+2); said > most {
		t.Errorf("the database was sent %.0f bytes for %d guesses, want at most %.0f", said, guesses, most)
	}
}

// open-parts.md, Rate limits: every charged response and every 429 shows the state of its bucket.
func TestResponsesShowTheirLimit(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	n := newNode(t, calm, "SVC_DATABASE_URL="+pgtest.New(t).URL, "SVC_RATE_CAPACITY=5", "SVC_RATE_REFILL=0.01")
	n.start()
	c := n.tenant("limits")
	fields := func(a answer) (got [3]int) {
		t.Helper()
		for i, name := range []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"} {
			v, err := strconv.Atoi(a.header.Get(name))
			if err != nil {
				t.Fatalf("%s of %s: %v", name, a.whole(), err)
			}
			got[i] = v
		}
		return got
	}
	// drain calls until it is refused. On a slow machine the bucket gains a token per refill meanwhile.
	drain := func(what, scope string, full int, refill time.Duration, call func() (answer, error)) {
		t.Helper()
		began := time.Now()
		for i := 0; ; i++ {
			a, err := call()
			if err != nil {
				t.Fatal(err)
			}
			got, least, flowed := fields(a), max(full-1-i, 0), int(time.Since(began)/refill)
			limited := a.status == 429
			if limited && i < full || !limited && i >= full+flowed || got[0] != full || got[1] < least || got[1] > least+flowed || limited && got[1] > 0 || got[2] <= 0 {
				t.Fatalf("%s, call %d: %v %s", what, i+1, got, a.whole())
			}
			if !limited {
				continue
			}
			if !strings.Contains(string(a.body), "scope "+scope+" ") || a.header.Get("Retry-After") == "" {
				t.Errorf("%s: %s", what, a.whole())
			}
			return
		}
	}
	get := func(ctx context.Context, path string, header ...string) func() (answer, error) {
		return func() (answer, error) { return c.do(ctx, "GET", path, nil, header...) }
	}
	drain("a tenant", "tenant", 5, 100*time.Second, get(ctx, "/v1/tenant"))
	drain("no key", "ip", 5, 100*time.Second, get(ctx, "/v1/tenant", "Authorization", "", "X-Tenant-Id", ""))
	drain("a public route", "public", 5, 100*time.Second, get(ctx, "/v1/openapi.json"))
	drain("the login", "login", 20, 10*time.Second, func() (answer, error) {
		return c.do(ctx, "POST", "/v1/auth/login", object{"email": fmt.Sprint(id.NewAnywhere(), "@example.com"), "password": "no"})
	})
	if a, err := c.do(ctx, "GET", "/healthz", nil); err != nil || a.header.Get("RateLimit-Limit") != "" {
		t.Errorf("health: %v %s", err, a.whole())
	}
}
