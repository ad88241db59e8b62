package vendor

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/schemas/source"
	"agentsvc/transport/egress"
)

func newClient(t *testing.T, base string, timing Timing, live func() bool) *Client {
	t.Helper()
	guard := egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Live: live, Observe: func(to netip.AddrPort, _ error) error {
		if !to.Addr().Unmap().IsLoopback() {
			return errors.New("tests dial loopback only")
		}
		return nil
	}})
	all := NewClients(guard, "test", true, timing)
	t.Cleanup(all.Close)
	c, err := all.Client("the vendor", base)
	if err != nil {
		t.Fatal(err)
	}
	c.Authorize = func(r *http.Request) { r.Header.Set("Authorization", "Bearer canary") }
	return c
}

// TestCredentialsStayAtTheirOrigin: neither a file at another host nor a redirect carries them, nor
// an anonymous request to the own one.
func TestCredentialsStayAtTheirOrigin(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]string{}
	note := func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r.URL.Path] = r.Header.Get("Authorization")
	}
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { note(r) }))
	defer other.Close()
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		if r.URL.Path == "/redirects" {
			http.Redirect(w, r, other.URL+"/redirected", http.StatusFound)
		}
	}))
	defer own.Close()
	c := newClient(t, own.URL, Timing{}, nil)
	for _, at := range []string{own.URL + "/own", other.URL + "/other", own.URL + "/redirects"} {
		resp, err := c.File(context.Background(), at, "")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	resp, err := c.Anonymous().File(context.Background(), own.URL+"/anonymous", "")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	mu.Lock()
	defer mu.Unlock()
	for path, want := range map[string]string{"/own": "Bearer canary", "/redirects": "Bearer canary", "/other": "", "/redirected": "", "/anonymous": ""} {
		if got, ok := seen[path]; !ok || got != want {
			t.Errorf("%s: %q %v", path, got, ok)
		}
	}
}

// TestRedirectsAreChecked: a file that redirects to a private address is not fetched.
func TestRedirectsAreChecked(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest?secret=canary", http.StatusFound)
	}))
	defer s.Close()
	_, err := newClient(t, s.URL, Timing{Backoff: time.Millisecond}, nil).File(context.Background(), s.URL, "")
	f := new(source.Fault)
	if !errors.As(err, &f) || !f.Lasting || !strings.Contains(f.Reason, "outbound guard") || strings.Contains(err.Error(), "canary") {
		t.Fatal(err)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", "", 0}, {"7", "", 7 * time.Second}, {"-1", "", 0}, {"0", "", 0}, {"x", "", 0}, {"NaN", "", 0}, {"1e300", "", 365 * 24 * time.Hour},
		{"Fri, 01 Jan 2038 00:00:10 GMT", "Fri, 01 Jan 2038 00:00:00 GMT", 10 * time.Second},
		{"Fri, 01 Jan 1999 00:00:10 GMT", "Fri, 01 Jan 1999 00:00:00 GMT", 10 * time.Second},
		{"Fri, 01 Jan 1999 00:00:00 GMT", "Fri, 01 Jan 1999 00:00:10 GMT", 0}, {"Fri, 01 Jan 1999 00:00:00 GMT", "", 0},
	} {
		if got := RetryAfter(http.Header{"Retry-After": {c.value}, "Date": {c.date}}); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestAPauseThatIsTooLong for a call is told, also by the last attempt.
func TestAPauseThatIsTooLong(t *testing.T) {
	t.Parallel()
	for before := range attempts {
		calls := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls > before {
				w.Header().Set("Retry-After", "90")
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		_, err := newClient(t, s.URL, Timing{Backoff: time.Millisecond}, nil).Small(context.Background(), s.URL, "")
		s.Close()
		f := new(source.Fault)
		if !errors.As(err, &f) || f.RetryAfter != 90*time.Second || !strings.Contains(f.Reason, "it asks to wait 1m30s") || calls != before+1 {
			t.Errorf("after %d failures: %v, %d calls", before, err, calls)
		}
	}
}

// TestANodeWithoutItsLease sends nothing and does not call it a fault of the vendor.
func TestANodeWithoutItsLease(t *testing.T) {
	t.Parallel()
	c := newClient(t, "http://127.0.0.1:1/?key=canary", Timing{}, func() bool { return false })
	_, err := c.Small(context.Background(), "http://127.0.0.1:1/?key=canary", "")
	if f := new(source.Fault); !errors.Is(err, egress.ErrSuspended) || errors.As(err, &f) || strings.Contains(err.Error(), "canary") {
		t.Fatal(err)
	}
}

// TestACallEnds with its context, also during a pause that the vendor asked for.
func TestACallEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(http.StatusServiceUnavailable)
		cancel()
	}))
	defer s.Close()
	if _, err := newClient(t, s.URL, Timing{}, nil).Small(ctx, s.URL, ""); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestASlowAnswer: one that drips is given up after the time of a call.
func TestASlowAnswer(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drip := time.NewTicker(5 * time.Millisecond)
		defer drip.Stop()
		for r.Context().Err() == nil {
			io.WriteString(w, " ")
			w.(http.Flusher).Flush()
			<-drip.C
		}
	}))
	defer s.Close()
	c := newClient(t, s.URL, Timing{Call: 60 * time.Millisecond, File: time.Second}, nil)
	f := new(source.Fault)
	if _, err := c.Small(context.Background(), s.URL, ""); !errors.As(err, &f) || !strings.Contains(f.Reason, "in time") {
		t.Fatal(err)
	}
	resp, err := c.File(context.Background(), s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); !errors.As(err, &f) || !f.Item {
		t.Fatal(err)
	}
}

// TestAWalkEnds at its bounds, and not before.
func TestAWalkEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before Walk
		items  int
		ends   bool
	}{
		"the last file":        {Walk{Items: maxItems - 3}, 3, false},
		"one more":             {Walk{Items: maxItems - 3}, 4, true},
		"the last page":        {Walk{Pages: maxPages - 1}, 1, false},
		"a page more":          {Walk{Pages: maxPages}, 1, true},
		"the last empty page":  {Walk{Empty: maxEmpty - 1}, 0, false},
		"an empty page more":   {Walk{Empty: maxEmpty}, 0, true},
		"files after all this": {Walk{Empty: maxEmpty}, 1, false},
	} {
		at := c.before
		err := at.Count(c.items)
		if f := new(source.Fault); (err != nil) != c.ends || c.ends && (!errors.As(err, &f) || !f.Lasting) {
			t.Errorf("%s: %v", name, err)
		}
		if at.Pages != c.before.Pages+1 || at.Items != c.before.Items+c.items || c.items > 0 && at.Empty != 0 {
			t.Errorf("%s: %+v", name, at)
		}
	}
}

// TestPositions that do not belong to a connector are none.
func TestPositions(t *testing.T) {
	t.Parallel()
	for in, ok := range map[string]bool{"": false, "{}": true, "x": false, `{"p":1}`: true, `{"p":"x"}`: false} {
		var w Walk
		if Load(in, &w) != ok {
			t.Errorf("%q", in)
		}
	}
}

// TestManyValues: an answer of millions of small values is refused before it is decoded, and a long
// text is no value.
func TestManyValues(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/many": `{"results":[` + strings.Repeat("{},", maxValues) + `{}]}`, "/members": `{` + strings.Repeat(`"":1,`, maxValues) + `"":1}`,
		"/page": `{"results":[` + strings.Repeat(`{"a":1,"b":{"c":[]}},`, 10_000) + `{}]}`, "/text": `{"results":["` + strings.Repeat(",{[", 1<<20) + `"]}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, answers[r.URL.Path]) }))
	defer s.Close()
	c := newClient(t, s.URL, Timing{}, nil)
	for path, ok := range map[string]bool{"/many": false, "/members": false, "/page": true, "/text": true} {
		var v struct{ Results []any }
		err := c.JSON(context.Background(), s.URL+path, &v)
		if f := new(source.Fault); ok != (err == nil) || err != nil && (!errors.As(err, &f) || !strings.Contains(f.Reason, "cannot be read")) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestFollow: a listing goes on at its own origin, by an address that a position can keep.
func TestFollow(t *testing.T) {
	t.Parallel()
	c := newClient(t, "https://h.example/api", Timing{}, nil)
	for next, ok := range map[string]bool{"/api?c=1": true, "https://H.example:443/x": true, "https://i.example/": false, "http://h.example/": false, "//i.example/": false,
		"/?" + strings.Repeat("c", MaxPosition-2): true, "/?" + strings.Repeat("c", MaxPosition-1): false} {
		if _, err := c.Follow(next); ok != (err == nil) {
			t.Errorf("%.40s: %v", next, err)
		}
	}
}
