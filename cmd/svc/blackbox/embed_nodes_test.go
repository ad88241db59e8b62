//go:build storm

package blackbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// embedded is a tenant with an agent on some nodes, with an administrator whose calls go to any of them.
type embedded struct {
	*bed
	admin *caller
	agent string
}

func newEmbedded(t *testing.T, lease time.Duration) *embedded {
	t.Helper()
	b := newBed(t, 3, lease)
	b.start()
	e := &embedded{bed: b, admin: b.client(b.desk.tenant("embedded"), b.book)}
	e.agent = e.admin.publish(t, "Shop", simulatedModel)
	return e
}

// any returns a random node that is ready.
func (e *embedded) any() *member {
	from := e.healthy()
	if len(from) == 0 {
		from = e.nodes
	}
	return from[rand.IntN(len(from))]
}

// TestEmbedOnThreeNodes checks what service.md promises of the embed API while successive calls go to
// different nodes.
func TestEmbedOnThreeNodes(t *testing.T) {
	e := newEmbedded(t, 3*time.Second)
	t.Run("while all nodes live", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *embedded){
			"one reply at a time":                   oneReplyAtATime,
			"two streams":                           twoStreams,
			"buckets":                               embedBuckets,
			"a true Retry-After":                    embedRetryAfter,
			"rotated, paused, revoked, and deleted": embedEnds,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, e)
			})
		}
	})
	t.Run("while one is killed", func(t *testing.T) { embedKilled(t, e) })
}

// Security.md, Invariants 7: a hundred simultaneous posts to one thread, by the browsers of one end user.
func oneReplyAtATime(t *testing.T, e *embedded) {
	ctx := within(t, 30*time.Second)
	k := e.admin.newEmbedKey(t, ctx, e.agent, "one at a time", object{"with_identity_secret": true, "rate_limit_per_min": 10000})
	browsers := make([]*guest, 25)
	each(8, len(browsers), func(i int) {
		browsers[i] = e.admin.visitor(t, ctx, k.Key, identityToken(t, k.IdentitySecret, object{"sub": "kim"}))
	})
	const slow = "/delay 20ms\n/tokens 25"
	first, err := browsers[0].insist(ctx, "", slow, "")
	if err != nil || first.status != 202 {
		t.Fatalf("%v %s", err, first)
	}
	posts := []*utterance{first}
	for range 3 {
		said, errs := make([]*utterance, 100), make([]error, 100)
		each(len(said), len(said), func(i int) {
			said[i], errs[i] = browsers[i%len(browsers)].say(e.nodes[i%3].on(ctx), first.ThreadID, slow)
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		posts = append(posts, said...)
		eventually(t, ctx, "the thread's run ends", func() bool {
			_, err := e.admin.runsOf(ctx, first.ThreadID, posts)
			return err == nil
		})
	}
	for _, u := range posts {
		if u.status != 202 && u.code != "EMBED_RUN_IN_FLIGHT" {
			t.Errorf("the response to a post is %s", u)
		}
	}
	runs, err := e.admin.runsOf(ctx, first.ThreadID, posts)
	if err != nil {
		t.Fatal(err)
	}
	wrong, accepted, refused := inTime(posts, runs)
	for _, w := range wrong {
		t.Error(w)
	}
	if accepted < 3 || refused < 200 {
		t.Errorf("%d posts were accepted, %d refused: the test is void", accepted, refused)
	}
	var history struct{ Items []heldMessage }
	browsers[3].ask(t, e.any().on(ctx), 200, "GET", "/v1/embed/threads/"+first.ThreadID+"/messages", nil, &history)
	if len(history.Items) != 2*accepted {
		t.Errorf("%d posts were accepted, the thread has %d messages", accepted, len(history.Items))
	}
	for i, m := range history.Items {
		if m.Role != []string{"user", "assistant"}[i%2] {
			t.Errorf("message %d is the %s's", i, m.Role)
		}
	}
}

// longAnswer posts a message whose answer takes longer than a test.
func longAnswer(t *testing.T, ctx context.Context, g *guest) string {
	t.Helper()
	u, err := g.insist(ctx, "", "/delay 100ms\n/tokens 3000", "")
	if err != nil || u.status != 202 {
		t.Fatalf("%v %s", err, u)
	}
	t.Cleanup(func() { _, _ = g.do(context.WithoutCancel(ctx), "POST", "/v1/embed/runs/"+u.RunID+"/cancel", nil) })
	return u.RunID
}

// opensSoon opens a stream at a node as soon as the node admits it, and returns how long that took. Each try
// counts as one of the visitor's reads.
func (g *guest) opensSoon(t *testing.T, ctx context.Context, m *member, run string, pause time.Duration) (*opened, time.Duration) {
	t.Helper()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for begun := time.Now(); ; {
		o, err := g.open(ctx, m, run)
		switch {
		case err == nil && o.status == http.StatusOK:
			return o, time.Since(begun)
		case err != nil:
			t.Fatal(err)
		case o.code != "EMBED_TOO_MANY_STREAMS" && o.status != http.StatusServiceUnavailable:
			t.Fatalf("the response to a stream is %d %s", o.status, o.code)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("no stream was ever admitted")
		}
	}
}

// Security.md, Invariants 9.
func twoStreams(t *testing.T, e *embedded) {
	ctx := within(t, 20*time.Second)
	k := e.admin.newEmbedKey(t, ctx, e.agent, "two streams", nil)
	g, other := e.admin.visitor(t, ctx, k.Key, ""), e.admin.visitor(t, ctx, k.Key, "")
	run := longAnswer(t, ctx, g)
	all, errs := make([]*opened, 20), make([]error, 20)
	each(len(all), len(all), func(i int) { all[i], errs[i] = g.open(ctx, e.nodes[i%3], run) })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	var live []*opened
	for _, o := range all {
		switch {
		case o.status == http.StatusOK:
			live = append(live, o)
			defer o.close()
		case o.code != "EMBED_TOO_MANY_STREAMS" || o.status != 429 || o.header.Get("Retry-After") != "5":
			t.Errorf("the response to a stream is %d %s, Retry-After %q", o.status, o.code, o.header.Get("Retry-After"))
		}
	}
	if len(live) != 2 {
		t.Fatalf("%d of 20 streams are open", len(live))
	}
	o, err := other.open(ctx, e.any(), longAnswer(t, ctx, other))
	if err != nil || o.status != http.StatusOK {
		t.Fatalf("another visitor: %v %d", err, o.status)
	}
	o.close()
	for i, m := range e.nodes { // each node admits a stream after one is closed
		live[i%2].close()
		o, took := g.opensSoon(t, ctx, m, run, 100*time.Millisecond)
		if took > time.Second {
			t.Errorf("the stream after a closed one was admitted at node %s after %s", m.name, took)
		}
		live[i%2] = o
		defer o.close()
		if o, err := g.open(ctx, e.any(), run); err != nil || o.status != 429 {
			t.Errorf("a third stream: %v %d", err, o.status)
		}
	}
}

// Security.md, Invariants 10: the largest number of clients calls all nodes at the same time.
func embedBuckets(t *testing.T, e *embedded) {
	ctx := within(t, 40*time.Second)
	k := e.admin.newEmbedKey(t, ctx, e.agent, "buckets", object{"rate_limit_per_min": 90})
	rich := e.admin.newEmbedKey(t, ctx, e.agent, "not the bucket", object{"rate_limit_per_min": 10000})
	crowd := make([]*guest, 8)
	for i := range crowd {
		crowd[i] = e.admin.visitor(t, ctx, k.Key, "")
	}
	one, reader, strange := e.admin.visitor(t, ctx, rich.Key, ""), e.admin.visitor(t, ctx, rich.Key, ""), newGuest(e.admin, rich.Key, "")
	minter := newGuest(e.admin, rich.Key, "")
	for name, bucket := range map[string]struct {
		perMinute float64
		ask       func(ctx context.Context, i int) (answer, error)
		accepts   int
	}{
		"messages of a visitor": {20, func(ctx context.Context, _ int) (answer, error) {
			return one.do(ctx, "POST", "/v1/embed/messages", object{"content": "/say yes"})
		}, 202},
		"messages of a key": {90, func(ctx context.Context, i int) (answer, error) {
			return crowd[i%len(crowd)].do(ctx, "POST", "/v1/embed/messages", object{"content": "/say yes"})
		}, 202},
		"reads of a visitor": {60, func(ctx context.Context, _ int) (answer, error) {
			return reader.do(ctx, "GET", "/v1/embed/threads", nil)
		}, 200},
		"config reads of an address": {60, func(ctx context.Context, _ int) (answer, error) {
			return strange.do(ctx, "GET", "/v1/embed/config", nil)
		}, 200},
		"sessions of an address": {30, func(ctx context.Context, _ int) (answer, error) {
			return minter.do(ctx, "POST", "/v1/embed/session", object{})
		}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lasts = 6 * time.Second
			var accepted, refused, n atomic.Int64
			begun := time.Now()
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					tick := time.NewTicker(100 * time.Millisecond)
					defer tick.Stop()
					for time.Since(begun) < lasts {
						i := int(n.Add(1))
						switch a, err := bucket.ask(e.nodes[i%3].on(ctx), i); {
						case err != nil:
							t.Error(err)
						case a.status == bucket.accepts:
							accepted.Add(1)
						case a.code() != "RATE_LIMITED" || a.header.Get("Retry-After") == "":
							t.Errorf("%s, Retry-After %q", a, a.header.Get("Retry-After"))
						default:
							refused.Add(1)
						}
						<-tick.C
					}
				})
			}
			wg.Wait()
			took := time.Since(begun).Minutes()
			most := int64(bucket.perMinute + bucket.perMinute*took + 1)
			least := int64(bucket.perMinute + bucket.perMinute*(lasts-time.Second).Minutes() - 1)
			if got := accepted.Load(); got > most || got < least || refused.Load() == 0 {
				t.Errorf("in %.1f s %d are admitted, %d refused; want at least %d admitted, and at most %d", took*60, got, refused.Load(), least, most)
			}
		})
	}
}

// A request after Retry-After passes, at any node.
func embedRetryAfter(t *testing.T, e *embedded) {
	ctx := within(t, 40*time.Second)
	k := e.admin.newEmbedKey(t, ctx, e.agent, "retry", nil)
	g := e.admin.visitor(t, ctx, k.Key, "")
	for range 2 {
		var a answer
		for i := 0; a.status != 429; i++ {
			var err error
			if a, err = g.do(e.nodes[i%3].on(ctx), "POST", "/v1/embed/messages", object{"content": "/say yes"}); err != nil || i > 25 {
				t.Fatalf("%v, %d posts, the last one %s", err, i, a)
			}
		}
		var p struct {
			RetryAfter float64 `json:"retry_after"`
		}
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		if err != nil || a.decode(&p) != nil || p.RetryAfter <= 0 || seconds < 1 || seconds > 3 {
			t.Fatalf("%s, Retry-After %q: at 20 a minute a token takes at most 3 s", a, a.header.Get("Retry-After"))
		}
		pauseFor(ctx, time.Duration(seconds)*time.Second)
		if a, err := g.do(e.any().on(ctx), "POST", "/v1/embed/messages", object{"content": "/say yes"}); err != nil || a.status != 202 {
			t.Errorf("after the %d s of Retry-After: %v %s", seconds, err, a)
		}
	}
}

// embedEndings are the changes by the tenant that end sessions on every node, with the codes that the key and
// the token get afterwards.
var embedEndings = []struct {
	name          string
	order         func(t *testing.T, ctx context.Context, e *embedded, k embedKeyView, user string)
	key, token    string
	onlyKnownOnes bool // sessions of anonymous visitors continue
}{
	{"rotated", func(t *testing.T, ctx context.Context, e *embedded, k embedKeyView, _ string) {
		e.admin.ask(t, ctx, 200, "POST", "/v1/embed-keys/"+k.ID+"/rotate", nil, nil)
	}, "EMBED_KEY_INVALID", "EMBED_UNAUTHORIZED", false},
	{"paused", func(t *testing.T, ctx context.Context, e *embedded, k embedKeyView, _ string) {
		e.admin.ask(t, ctx, 200, "PATCH", "/v1/embed-keys/"+k.ID, object{"enabled": false}, nil)
	}, "EMBED_KEY_DISABLED", "EMBED_KEY_DISABLED", false},
	{"paused and enabled again", func(t *testing.T, ctx context.Context, e *embedded, k embedKeyView, _ string) {
		e.admin.ask(t, ctx, 200, "PATCH", "/v1/embed-keys/"+k.ID, object{"enabled": false}, nil)
		e.admin.ask(t, e.any().on(ctx), 200, "PATCH", "/v1/embed-keys/"+k.ID, object{"enabled": true}, nil)
	}, "", "EMBED_UNAUTHORIZED", false},
	{"revoked", func(t *testing.T, ctx context.Context, e *embedded, k embedKeyView, _ string) {
		e.admin.ask(t, ctx, 204, "DELETE", "/v1/embed-keys/"+k.ID, nil, nil)
	}, "EMBED_KEY_DISABLED", "EMBED_KEY_DISABLED", false},
	{"the agent is archived", func(t *testing.T, ctx context.Context, e *embedded, k embedKeyView, _ string) {
		var keyed struct {
			AgentID string `json:"agent_id"`
		}
		e.admin.ask(t, ctx, 200, "GET", "/v1/embed-keys/"+k.ID, nil, &keyed)
		e.admin.ask(t, ctx, 204, "DELETE", "/v1/agents/"+keyed.AgentID, nil, nil)
	}, "EMBED_KEY_DISABLED", "EMBED_KEY_DISABLED", false},
	{"the end user is deleted", func(t *testing.T, ctx context.Context, e *embedded, _ embedKeyView, user string) {
		e.admin.ask(t, ctx, 204, "DELETE", "/v1/end-users/"+user, nil, nil)
	}, "", "EMBED_UNAUTHORIZED", true},
}

// Security.md, Invariants 17, for visitors: after the response no node accepts the ended sessions, and their
// streams are cut within a second, without a terminal frame.
func embedEnds(t *testing.T, e *embedded) {
	for _, end := range embedEndings {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 20*time.Second)
			agent := e.admin.publish(t, "Until "+end.name, simulatedModel)
			k := e.admin.newEmbedKey(t, ctx, agent, end.name, object{"with_identity_secret": true, "rate_limit_per_min": 10000})
			known := func(sub string) *guest {
				return e.admin.visitor(t, ctx, k.Key, identityToken(t, k.IdentitySecret, object{"sub": sub}))
			}
			kim := []*guest{known(end.name), known(end.name), known(end.name)}
			lee := e.admin.visitor(t, ctx, k.Key, "")
			run, other := longAnswer(t, ctx, kim[0]), longAnswer(t, ctx, lee)
			var streams []*opened
			for i, m := range e.nodes { // each node has streams of the key and has cached the token
				o, err := kim[i].open(ctx, m, run)
				if err != nil || o.status != http.StatusOK {
					t.Fatalf("%v %d %s", err, o.status, o.code)
				}
				streams = append(streams, o)
			}
			stays, err := lee.open(ctx, e.any(), other)
			if err != nil || stays.status != http.StatusOK {
				t.Fatalf("%v %d %s", err, stays.status, stays.code)
			}
			defer stays.close()

			// Everything is in use during the change.
			type asking struct {
				at     time.Time
				what   string
				answer answer
			}
			var mu sync.Mutex
			var asked []asking
			using, cease := context.WithCancel(ctx)
			defer cease()
			var users sync.WaitGroup
			ask := func(ctx context.Context, m *member, what string, do func(ctx context.Context) (answer, error)) {
				at := time.Now()
				a, err := do(m.on(ctx))
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, asking{at, what, a})
			}
			withKey := func(ctx context.Context) (answer, error) {
				return newGuest(e.admin, k.Key, "").do(ctx, "GET", "/v1/embed/config", nil)
			}
			withToken := func(g *guest) func(context.Context) (answer, error) {
				return func(ctx context.Context) (answer, error) { return g.do(ctx, "GET", "/v1/embed/threads", nil) }
			}
			for i, m := range e.nodes {
				users.Go(func() {
					tick := time.NewTicker(60 * time.Millisecond) // the rate limit of reads is 60 a minute
					defer tick.Stop()
					for using.Err() == nil {
						ask(using, m, "key", withKey)
						ask(using, m, "token", withToken(kim[i]))
						select {
						case <-tick.C:
						case <-using.Done():
						}
					}
				})
			}
			eventually(t, ctx, "it is in use", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(asked) > 9
			})
			end.order(t, e.any().on(ctx), e, k, kim[0].EndUserID)
			gone := time.Now()
			for i, m := range e.nodes {
				for range 3 {
					ask(ctx, m, "key", withKey)
					ask(ctx, m, "token", withToken(kim[(i+1)%3]))
				}
			}
			cease()
			users.Wait()
			before := 0
			for _, a := range asked {
				if a.at.Before(gone) {
					if a.answer.status == 200 {
						before++
					}
					continue
				}
				want := map[string]string{"key": end.key, "token": end.token}[a.what]
				if got := a.answer.code(); got != want || want == "" && a.answer.status != 200 {
					t.Errorf("%s later the %s gets %s, want %q", a.at.Sub(gone), a.what, a.answer, want)
				}
			}
			if before == 0 {
				t.Error("nothing was accepted before: the test is void")
			}
			if !end.onlyKnownOnes {
				streams = append(streams, stays)
			}
			for _, o := range streams {
				select {
				case <-o.ended:
				case <-time.After(time.Until(gone.Add(2 * time.Second))):
					t.Errorf("a stream at node %s is still open", o.node.name)
					o.close()
					continue
				}
				if late := o.at.Sub(gone); late > time.Second {
					t.Errorf("a stream at node %s ended %s after the answer", o.node.name, late)
				}
				if n := len(o.frames); n > 0 && o.frames[n-1].Terminal() {
					t.Errorf("a stream at node %s ended with %s", o.node.name, o.frames[n-1].Type)
				}
			}
			if a, err := lee.do(e.any().on(ctx), "GET", "/v1/embed/threads", nil); err != nil || (a.status == 200) != end.onlyKnownOnes {
				t.Errorf("the anonymous visitor gets %v %s", err, a)
			}
			if end.onlyKnownOnes {
				select {
				case <-stays.ended:
					t.Error("the stream of another visitor ended")
				default:
				}
			}
		})
	}
}

// A node with open streams is killed: the streams continue on another node at the same position, and the
// visitors' places on the killed node are free within its lease.
func embedKilled(t *testing.T, e *embedded) {
	ctx := within(t, 40*time.Second)
	k := e.admin.newEmbedKey(t, ctx, e.agent, "killed", object{"rate_limit_per_min": 10000})
	victim := e.nodes[0]
	const talks = 8
	type talk struct {
		*guest
		u      *utterance
		frames []client.Frame
		nodes  []*member
	}
	all := make([]*talk, talks)
	each(talks, talks, func(i int) {
		all[i] = &talk{guest: e.admin.visitor(t, ctx, k.Key, "")}
		var err error
		if all[i].u, err = all[i].insist(ctx, "", fmt.Sprintf("/delay 30ms\n/tokens 150\n/say done %d", i), ""); err != nil || all[i].u.status != 202 {
			t.Errorf("%v %s", err, all[i].u)
		}
	})
	if t.Failed() {
		return
	}
	var reading sync.WaitGroup
	for _, x := range all {
		reading.Go(func() {
			last := ""
			for ctx.Err() == nil {
				m := victim
				if len(x.nodes) > 0 {
					m = e.any()
				}
				x.nodes = append(x.nodes, m)
				ended, _ := x.FollowOnce(m.on(ctx), x.u.RunID, "", &last, func(f client.Frame) error {
					x.frames = append(x.frames, f)
					return nil
				})
				if ended || !pauseFor(ctx, 200*time.Millisecond) {
					return
				}
			}
		})
	}
	// In addition a visitor has one stream at the victim and one elsewhere.
	g := e.admin.visitor(t, ctx, k.Key, "")
	run := longAnswer(t, ctx, g)
	for _, m := range e.nodes[:2] {
		o, err := g.open(ctx, m, run)
		if err != nil || o.status != http.StatusOK {
			t.Fatalf("%v %d", err, o.status)
		}
		defer o.close()
	}
	if o, err := g.open(ctx, e.nodes[2], run); err != nil || o.status != 429 {
		t.Fatalf("a third stream: %v %d", err, o.status)
	}
	pauseFor(ctx, time.Second)
	killed := time.Now()
	victim.kill()
	o, _ := g.opensSoon(t, ctx, e.nodes[2], run, 250*time.Millisecond)
	defer o.close()
	// At their next heartbeat the other nodes see that the victim died, and the node that counts the streams
	// learns of it.
	if took := time.Since(killed); took > e.lease+1500*time.Millisecond {
		t.Errorf("the place at a killed node was free after %s", took)
	} else {
		t.Logf("the place at a killed node was free after %s", took.Round(time.Millisecond))
	}
	if o, err := g.open(ctx, e.nodes[1], run); err != nil || o.status != 429 {
		t.Errorf("a third stream: %v %d", err, o.status)
	}
	reading.Wait()
	resumed := 0
	for _, x := range all {
		if len(x.nodes) > 1 {
			resumed++
		}
		replay, err := x.streamOnce(ctx, x.u.RunID, "", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range relayed(x.frames, replay) {
			t.Errorf("run %s: %s", x.u.RunID, w)
		}
		if n := len(x.frames); n == 0 || x.frames[n-1].Type != "run.completed" {
			t.Errorf("run %s: %s", x.u.RunID, types(x.frames))
		}
	}
	if resumed == 0 {
		t.Error("no stream was resumed: the test is void")
	}
	victim.back(ctx)
	if a, err := g.do(victim.on(ctx), "GET", "/v1/embed/threads", nil); err != nil || a.status != 200 {
		t.Errorf("at the node that was killed: %v %s", err, a)
	}
}
