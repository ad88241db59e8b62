package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/webhook"
)

const (
	hookBackoff = 500 * time.Millisecond
	hookTimeout = 2 * time.Second
	rotated     = 20 * time.Second // from one rotation of a secret to the next
)

// hookLaws are those that webhook endpoints are there for.
var hookLaws = []string{lawHooks, lawRepeats, lawSecret}

// What the webhook endpoints of a load do.
const (
	steady = "accepts all"
	moody  = "fails some at first"
)

// inMoods answers late, fails or breaks off some first attempts, and takes the next
// one: there are repeats, and kills that find attempts under way.
func inMoods(w http.ResponseWriter, r *http.Request, n int) {
	if n > 1 {
		return
	}
	switch rand.IntN(8) {
	case 0:
		panic(http.ErrAbortHandler)
	case 1, 2:
		w.WriteHeader(http.StatusServiceUnavailable)
	case 3, 4, 5:
		pauseFor(r.Context(), 100*time.Millisecond)
	}
}

// dispatch is an attempt on its way to an endpoint.
type dispatch struct {
	to     *subscriber
	header http.Header
	body   []byte
}

// sign signs what it is now with the endpoint's n-th secret, -1 for the last one.
func (d *dispatch) sign(n int) {
	d.to.keys.Lock()
	defer d.to.keys.Unlock()
	if n < 0 {
		n += len(d.to.secrets)
	}
	d.header.Set(webhook.SignatureHeader, webhook.Sign(d.to.secrets[n].secret, time.Now(), d.body))
}

// subscribes makes webhook endpoints, before the tenant's first run begins. A lie may
// change what they are sent.
func (l *load) subscribes(t *testing.T, x *lie) {
	t.Helper()
	ctx := within(t, time.Minute)
	hearers := map[string]*subscriber{}
	for name, does := range map[string]reaction{steady: answers(http.StatusOK), moody: inMoods} {
		to := new(atomic.Pointer[subscriber])
		s := &sink{reaction: does, of: map[string]int{}}
		s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if x == nil || x.tell == nil {
				s.ServeHTTP(w, r)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the sender was killed meanwhile
			}
			d := &dispatch{to.Load(), r.Header, body}
			if d.to != nil && !x.tell(x, d) {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(d.body))
			s.ServeHTTP(w, r)
		}))
		t.Cleanup(s.Server.Close)
		l.shows(s.Listener.Addr().String())
		hearers[name] = l.c.subscribe(t, ctx, s, string(webhook.RunCompleted), string(webhook.RunFailed))
		to.Store(hearers[name])
	}
	l.hearers = hearers
}

// rotate gives one of the endpoints a new secret.
func (l *load) rotate(ctx context.Context) error {
	return l.hearers[moody].rotate(ctx, l.name("rotation"))
}

// audited is what the laws of webhooks had before them.
type audited struct {
	deliveries, attempts int
	lost                 int // attempts of which the service does not know what became of them
	rotated              int // signed with another secret than the first one
}

// audit checks the laws of webhooks against what the endpoints received, once no delivery is
// pending.
func (l *load) audit(t *testing.T, f *findings) (sum audited) {
	t.Helper()
	if l.hearers == nil {
		return sum
	}
	ctx := within(t, 2*time.Minute) // of a long storm there is much to list
	for name, s := range l.hearers {
		eventually(t, ctx, "nothing is to be sent to who "+name, func() bool {
			var pending struct{ Items []json.RawMessage }
			a, err := l.c.careful(ctx, "GET", s.path+"/deliveries?status=pending&limit=1", "", nil)
			return err == nil && a.decode(&pending) == nil && len(pending.Items) == 0
		})
		var all []deliveryAnswer
		eventually(t, ctx, "the deliveries to who "+name+" are listed", func() bool {
			var err error
			all, err = s.tryDeliveries(ctx)
			return err == nil
		})
		// The list of runs is older than what was sent since.
		status := maps.Clone(f.ended)
		for _, a := range s.arrivals() {
			run := a.event(t).about
			l.book.rule(lawHooks, f.parents[run] == "", "who %s was told of run %s, the child of run %s", name, run, f.parents[run])
			if status[run] != "" {
				continue
			}
			var r runAnswer
			got, err := l.c.careful(ctx, "GET", "/v1/runs/"+run, "", nil)
			if err != nil || got.status == http.StatusOK && got.decode(&r) != nil {
				t.Fatalf("run %s: %v %s", run, err, got)
			}
			status[run] = r.Run.Status
		}
		s.hold(t, l.book, name, all, f.ended, status, &sum)
	}
	return sum
}

// hold holds the laws of webhooks against one endpoint, whose deliveries are all. It
// is to have heard of the runs that have ended, and may have of those with a status.
func (s *subscriber) hold(t *testing.T, b *book, name string, all []deliveryAnswer, ended, status map[string]string, sum *audited) {
	t.Helper()
	came, under := s.byDelivery(), map[string][]string{}
	for _, d := range all {
		as := came[d.ID]
		delete(came, d.ID)
		sum.deliveries++
		sum.attempts += len(as)
		sum.lost += unknowns(d)
		b.rule(lawHooks, len(as) > 0, "who %s was sent nothing of the delivery %+v", name, d)
		for i := range as {
			a := &as[i]
			e := a.envelope(t)
			from := e.CreatedAt // the attempt began later
			if i == 0 {
				k := a.event(t)
				under[k.about] = append(under[k.about], d.ID)
				is := status[k.about]
				b.rule(lawHooks, terminalStatus[is] && (k.kind == string(webhook.RunCompleted)) == (is == "succeeded") && strings.HasPrefix(k.status, is),
					"who %s was sent %s, and the run is %q", name, a.body, is)
				if e.ID != d.EventID || e.Type != d.Type {
					b.breaks(lawRepeats, "who %s was sent %s under the id of %+v", name, a.body, d)
				}
			} else {
				before := &as[i-1]
				from = later(from, before.at)
				b.rule(lawRepeats, a.body == before.body, "who %s was sent %s and %s under the id %s", name, before.body, a.body, d.ID)
			}
			by := s.signer(*a)
			if by > 0 {
				sum.rotated++
			}
			b.rule(lawSecret, by >= 0 && !s.replaced(by, from), "who %s was sent attempt %d of the delivery %s at %s, signed with the secret %d, in an attempt begun after %s", name, i+1, d.ID, a.at, by, from)
		}
	}
	for id, as := range came {
		b.breaks(lawRepeats, "who %s was sent %s under the id %q, which is no delivery's", name, as[0].body, id)
	}
	for run, is := range ended {
		b.rule(lawHooks, len(under[run]) == 1, "who %s was sent the end of run %s, which is %s, under the ids %v", name, run, is, under[run])
	}
}

// replaced reports whether the answer with the secret after the n-th one had come
// before a time.
func (s *subscriber) replaced(n int, before time.Time) bool {
	s.keys.Lock()
	defer s.keys.Unlock()
	return n+1 < len(s.secrets) && s.secrets[n+1].since.Before(before)
}

// weighed is what a storm of so many kills must have met.
func (a audited) weighed(t *testing.T, kills int) {
	t.Helper()
	what := fmt.Sprintf("webhooks: %d attempts of %d deliveries, %d signed with a secret that was rotated in, of %d it is not known what became of them", a.attempts, a.deliveries, a.rotated, a.lost)
	if a.rotated == 0 || kills >= 20 && a.lost == 0 {
		t.Errorf("%s: the test is void", what)
	}
	t.Log(what)
}
