package embed_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/testkit"
)

// bounded takes from a bucket until it is empty: it held n tokens, and those that came
// back meanwhile. The refusal says when there is one again. It returns when it began.
func (w *world) bounded(what string, n, perMinute int, scope string, call func() answer) (since time.Time) {
	w.t.Helper()
	since = time.Now()
	w.within(what, n, since, perMinute, scope, call)
	return since
}

// shared takes from a bucket that bounded emptied: it holds only the tokens that came back
// since bounded began. Another bucket would be full.
func (w *world) shared(what string, since time.Time, perMinute int, scope string, call func() answer) {
	w.t.Helper()
	w.within(what, 0, since, perMinute, scope, call)
}

// within takes from a bucket until it is empty: it held n tokens, and those that came back
// since then.
func (w *world) within(what string, n int, since time.Time, perMinute int, scope string, call func() answer) {
	w.t.Helper()
	passed, refusal := w.emptied(call)
	most := n + int(time.Since(since).Seconds()*float64(perMinute)/60) + 1
	if passed < n || passed > most {
		w.t.Errorf("%s: %d were let in, want %d to %d", what, passed, n, most)
	}
	w.limited(what, refusal, scope)
}

// limited complains of a refusal that does not say what service.md, Errors wants.
func (w *world) limited(what string, refusal answer, scope string) {
	w.t.Helper()
	w.refused(what, refusal, 429, "RATE_LIMITED")
	var p struct {
		RetryAfter int `json:"retry_after"`
		Detail     string
	}
	w.must(json.Unmarshal([]byte(refusal.body), &p))
	if after, err := strconv.Atoi(refusal.header.Get("Retry-After")); err != nil || after < 1 || after > 60 || p.RetryAfter != after {
		w.t.Errorf("%s: Retry-After %q, %s", what, refusal.header.Get("Retry-After"), refusal.body)
	}
	if !strings.Contains(p.Detail, scope) {
		w.t.Errorf("%s: the detail does not name the scope %s: %s", what, scope, p.Detail)
	}
}

// service.md, Limits: embed per IP, 60 config reads per minute; 30 session mints per
// minute.
func TestTheBucketsOfAnAddress(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	config := func(from string) answer {
		return w.send("GET", "/v1/embed/config", "", of(k, "X-Forwarded-For", from)...)
	}
	mint := func(from string) answer {
		return w.send("POST", "/v1/embed/session", "", of(k, "X-Forwarded-For", from)...)
	}
	one := stranger()
	since := w.bounded("config", 60, 60, "embed_ip_config", func() answer { return config(one) })
	w.bounded("session", 30, 30, "embed_ip_session", func() answer { return mint(one) })
	if got := config(stranger()); got.status != 200 {
		t.Errorf("another address: %d %s", got.status, got.body)
	}
	// A client's own forwarding header in front of a proxy is not trusted.
	w.shared("an address that its client made up", since, 60, "embed_ip_config", func() answer { return config("203.0.113.9, " + one) })
	w.shared("behind two proxies", since, 60, "embed_ip_config", func() answer { return config(one + ", 127.0.0.9") })
	// IPv6 counts by /64.
	since = w.bounded("IPv6", 30, 30, "embed_ip_session", func() answer { return mint("2001:db8:1:2::1") })
	w.shared("its neighbour", since, 30, "embed_ip_session", func() answer { return mint("2001:db8:1:2:ffff::2") })
	if got := mint("2001:db8:1:3::1"); got.status != 200 {
		t.Errorf("another network: %d %s", got.status, got.body)
	}
	// A body that arrives after its head costs no second token.
	late := stranger()
	w.bounded("large bodies", 30, 30, "embed_ip_session", func() answer {
		return w.send("POST", "/v1/embed/session", "{}"+strings.Repeat(" ", 16<<10), of(k, "X-Forwarded-For", late)...)
	})
	// All embed calls are charged to the embed buckets only, and nothing else is.
	g := w.visit(k, "")
	if got := g.send("GET", "/v1/embed/threads", "", "X-Forwarded-For", one); got.status != 200 {
		t.Errorf("a call with a token: %d %s", got.status, got.body)
	}
	if got := w.call(w.a, "GET", "/v1/threads", "", "X-Forwarded-For", one); got.status != 200 {
		t.Errorf("the platform: %d %s", got.status, got.body)
	}
}

// service.md, Limits: embed per key, session mints 10 times rate_limit_per_min per key;
// messages across all visitors rate_limit_per_min.
func TestTheBucketsOfAKey(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, `, "rate_limit_per_min": 3`)
	other := w.newKey(w.a, w.a.agent, `, "rate_limit_per_min": 3`)
	mint := func() answer { return w.send("POST", "/v1/embed/session", "", of(k)...) }
	var guests []*guest
	for range 6 {
		guests = append(guests, w.visit(k, ""))
	}
	post := func(g *guest) answer { return g.send("POST", "/v1/embed/messages", message("hi", "")) }
	n := 0
	next := func() answer { n++; return post(guests[n%len(guests)]) }
	w.bounded("messages", 3, 3, "embed_key_messages", next)
	w.bounded("sessions", 30-len(guests), 30, "embed_key_mint", mint)
	if got := post(w.visit(other, "")); got.status != 202 {
		t.Errorf("another key: %d %s", got.status, got.body)
	}
	for name, got := range map[string]answer{"config": w.send("GET", "/v1/embed/config", "", of(k)...), "a read": guests[0].send("GET", "/v1/embed/threads", "")} {
		if got.status != 200 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	// Calls that the key refuses cost the visitor nothing.
	for range 30 * len(guests) {
		if got := next(); strings.Contains(got.body, "embed_visitor_messages") {
			t.Fatalf("a visitor paid for what its key refused: %s", got.body)
		}
	}
	// Its rate is the key's as it is now: a hundred tokens come back in a second.
	w.patch(k, `{"rate_limit_per_min": 6000}`)
	since := time.Now()
	testkit.Eventually(w.t, "the raised rate is the bucket's", func() bool { return next().status == 202 })
	if took := time.Since(since); took > 10*time.Second {
		t.Errorf("a token of the raised rate came after %v", took)
	}
	w.patch(k, `{"rate_limit_per_min": 1}`)
	passed, refusal := w.emptied(next)
	if passed > 2 {
		t.Errorf("%d messages after the rate was lowered to 1", passed)
	}
	w.limited("a lowered rate", refusal, "embed_key_messages")
}

// service.md, Limits: embed per visitor, 20 messages per minute; 60 reads per minute
// shared by history, cancel and stream opens.
func TestTheBucketsOfAVisitor(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret+`, "rate_limit_per_min": 25`)
	g := w.visit(k, "")
	s := g.say("hello", "")
	w.end(s.Run)
	post := func(g *guest) answer { return g.send("POST", "/v1/embed/messages", message("hi", "")) }
	since := w.bounded("messages", 19, 20, "embed_visitor_messages", func() answer { return post(g) })
	for name, again := range map[string]*guest{"its next session": w.visit(k, comesBack(g.Visitor)), "identified, in the same browser": w.visit(k, w.identified(k, `{"sub": "c-1"}`, "visitor", g.Visitor))} {
		w.shared(name, since, 20, "embed_visitor_messages", func() answer { return post(again) })
	}
	// A visitor that posts too much takes nothing from the others.
	for range 20 {
		post(g)
	}
	other := w.visit(k, "")
	if got := post(other); got.status != 202 {
		t.Errorf("another visitor: %d %s", got.status, got.body)
	}

	reads := []func() answer{
		func() answer { return g.send("GET", "/v1/embed/threads", "") },
		func() answer { return g.send("GET", "/v1/embed/threads/"+s.Thread+"/messages", "") },
		func() answer { return g.send("POST", "/v1/embed/runs/"+s.Run+"/cancel", "") },
		func() answer { return g.send("GET", "/v1/embed/runs/"+s.Run+"/events", "") },
	}
	n := 0
	w.bounded("reads", 60, 60, "embed_visitor_reads", func() answer { n++; return reads[n%len(reads)]() })
	for i, read := range reads {
		_, refusal := w.emptied(read)
		w.limited(fmt.Sprintf("read %d", i), refusal, "embed_visitor_reads")
	}
	if got := other.send("GET", "/v1/embed/threads", ""); got.status != 200 {
		t.Errorf("another visitor's read: %d %s", got.status, got.body)
	}
}

// service.md, Limits: embed streams, at most 2 live per visitor and key; Errors:
// EMBED_TOO_MANY_STREAMS, Retry-After: 5; security.md: a closed client frees its slot at
// once.
func TestTwoStreamsOfAVisitor(t *testing.T) {
	w := newWorld(t)
	k, sibling := w.newKey(w.a, w.a.agent, ""), w.newKey(w.a, w.a.agent, "")
	g := w.visit(k, "")
	done := g.say("hello", "")
	w.end(done.Run)
	w.models.Hold()
	runs := []said{g.say("hello", ""), g.say("hello", ""), g.say("hello", "")}
	first, _ := g.open(runs[0].Run, "")
	second, _ := g.open(runs[1].Run, "")
	defer second.close()
	second.until("run.started")
	full := func(what string, g *guest) {
		t.Helper()
		e, got := g.open(runs[2].Run, "")
		if e != nil {
			e.close()
			t.Errorf("%s: a third stream is open", what)
			return
		}
		w.refused(what, got, 429, "EMBED_TOO_MANY_STREAMS")
		if got.header.Get("Retry-After") != "5" || got.get("retry_after") != "5" {
			t.Errorf("%s: Retry-After %q: %s", what, got.header.Get("Retry-After"), got.body)
		}
	}
	full("a third", g)
	full("in the visitor's next session", w.visit(k, comesBack(g.Visitor)))
	if got := g.send("GET", "/v1/embed/runs/"+done.Run+"/events", ""); got.code() != "EMBED_TOO_MANY_STREAMS" {
		t.Errorf("of a run that has ended: %d %s", got.status, got.body)
	}
	if got := g.send("GET", "/v1/embed/runs/"+w.visit(k, "").say("hi", "").Run+"/events", ""); got.code() != "NOT_FOUND" {
		t.Errorf("of a foreign run: %d %s", got.status, got.body)
	}
	for name, other := range map[string]*guest{"another visitor": w.visit(k, ""), "a visitor of another key": w.visit(sibling, "")} {
		e, got := other.open(other.say("hi", "").Run, "")
		if e == nil {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
		e.close()
	}
	first.close()
	// Each try is one of the visitor's 60 reads of a minute, so that the pauses grow.
	var third *events
	since, pause := time.Now(), 10*time.Millisecond
	for third, _ = g.open(runs[2].Run, ""); third == nil; third, _ = g.open(runs[2].Run, "") {
		if time.Since(since) > patience {
			t.Fatalf("a closed stream's place is not free within %v", patience)
		}
		<-time.After(pause)
		pause = min(2*pause, time.Second)
	}
	t.Logf("a closed stream's place was free after %v", time.Since(since).Round(time.Millisecond))
	defer third.close()
	full("a third again", g)
	// A run that ends closes its stream, and frees the place.
	w.models.Release()
	third.until("")
	second.until("")
	for range 3 {
		if all := g.watch(runs[2].Run, ""); len(all) == 0 || all[len(all)-1].event != "run.completed" {
			t.Errorf("one after another: %v", all)
		}
	}
}
