package blackbox

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The laws of a service of several nodes, by the number of their invariant. Those
// of gated calls and of streams are in verdict_test.go.
const (
	lawAccepted = "1: no 202 is ever lost, and there is no phantom run"
	lawMutating = "2: an ungated mutating tool has one key a step, repeats the same bytes, and without a key is called once"
	lawCrowd    = "4: of fifty decisions at a time one counts"
	lawFinal    = "6: terminal is final, and a cancelled run never emits run.completed"
	lawIdle     = "10: nobody is refused while there are tokens"
	lawAdmits   = "10: a bucket admits what it holds and what flows in, and what it holds once more for each crash"
	lawRetry    = "10: a request after Retry-After passes"
	lawFlows    = "10: nobody is refused what has flowed into an emptied bucket"
	lawStalled  = "12: a reader that never reads harms no one"
	lawKeyed    = "13: one run for each idempotency key"
	lawHooks    = "14: each enabled endpoint is told once how each run has ended, and of nothing else"
	lawRepeats  = "14: all attempts of a delivery are the same bytes under the same ids"
	lawSecret   = "14: an attempt is signed with the secret that holds when it begins"
	lawReadEnd  = "15: a read after run.completed says succeeded on every node"
	lawRevoked  = "17: no request is accepted after the 204 of its key's revocation"
	lawCutOff   = "17: streams of a revoked key are closed within a second"
	lawSigterm  = "21: SIGTERM ends a node within 10 s of its drain time"
	lawNoFalse  = "22: without Postgres nothing is acknowledged"
	lawHeals    = "22: after Postgres is back all nodes heal within 10 s"
	lawSilent   = "23: a node that is cut off from Postgres or was paused stops within its lease"
	lawBuried   = "23: a process that was declared dead writes nothing"
	lawBucket   = "10: a planned move admits no more than the capacity and what flows in"
	lawBaseline = "24: goroutines, descriptors, connections and memory return to where they were"
	lawLives    = "no node ends by itself"
	lawTurn     = "7: one reply at a time is made in an embed thread, and who is refused is told which"
	lawRoom     = "8: an embed thread holds 200 messages and no more"
	lawPlaces   = "9: a visitor has at most two live streams of a key over all nodes"
	lawRelay    = "11: what was heard of a relay over crashes is the relay"
	lawForeign  = "16: another visitor's ids are answered like random ones"
	lawThreads  = "a thread's messages are those that were accepted, in order, each with its reply"
)

// clusterLaws is their order in a report.
var clusterLaws = []string{lawAccepted, lawMutating, lawCrowd, lawFinal, lawIdle, lawAdmits, lawRetry, lawFlows, lawStalled, lawKeyed, lawHooks, lawRepeats, lawSecret, lawReadEnd, lawRevoked, lawCutOff, lawSigterm, lawNoFalse,
	lawHeals, lawSilent, lawBuried, lawBucket, lawBaseline, lawLives, lawTurn, lawRoom, lawPlaces, lawRelay, lawForeign, lawThreads,
	lawFlowEnds, lawFlowOutput, lawNodeOnce, lawChildOnce, lawNodeCalls, lawEvents, lawAsked, lawFlowFrames, lawOneOutcome,
	lawSkillOnce, lawSkillTold, lawSkillEnds, lawSkillBilled, lawSkillLeft}

// exchange is one request as a client saw it.
type exchange struct {
	at, end      time.Time
	node         *member
	pid          int // of the process that served it
	method, path string
	key          string        // the Authorization
	story        string        // what it is a part of, empty: nothing
	bucket       string        // a drained one that it is charged to, empty: others
	live         bool          // a stream
	resumes      bool          // one that another node has begun
	status       int           // 0: there was no answer
	retry        time.Duration // Retry-After
	err          error
}

// accepted reports whether the whole answer said yes.
func (a *exchange) accepted() bool { return a.err == nil && a.status >= 200 && a.status < 300 }

// mutates reports whether the request was to change something.
func (a *exchange) mutates() bool { return a.method != "GET" && a.method != "HEAD" }

// span is a time in which something was done to a bed.
type span struct{ from, to time.Time }

// within reports whether a request was asked and answered in the span.
func (s span) within(a *exchange) bool { return a.at.After(s.from) && a.end.Before(s.to) }

// silence is a time in which one process may not act.
type silence struct {
	span
	pid    int
	before int // tool calls of the process shortly before
}

// book is what happened to a bed, what was asked of it, and what the laws came to.
type book struct {
	begun time.Time

	mu       sync.Mutex // guards the fields below
	happened []string
	asked    []*exchange
	open     map[*exchange]bool // asked and not answered
	outages  []span             // Postgres was down
	silences []silence          // a process was without a lease
	unrests  []*unrest          // buckets were on the move
	drained  []*drained         // those whose requests are all known
	held     map[string]int
	broken   map[string][]string
}

func newBook() *book {
	return &book{begun: time.Now(), open: map[*exchange]bool{}, held: map[string]int{}, broken: map[string][]string{}}
}

func (b *book) event(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := fmt.Sprintf("%8.3f %s", time.Since(b.begun).Seconds(), fmt.Sprintf(format, args...))
	b.happened = append(b.happened, line)
	if testing.Verbose() { // a storm is long: show how far it is
		fmt.Fprintln(os.Stderr, line)
	}
}

func (b *book) events() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.happened, "\n")
}

// asks says that a request is on its way; note that it is not any more.
func (b *book) asks(a *exchange) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[a] = true
}

func (b *book) note(a *exchange) {
	a.end = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, a)
	b.asked = append(b.asked, a)
}

// longAsked are the requests that are on their way for more than a time, the
// oldest first.
func (b *book) longAsked(d time.Duration) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var long []*exchange
	for a := range b.open {
		if time.Since(a.at) > d {
			long = append(long, a)
		}
	}
	slices.SortFunc(long, func(x, y *exchange) int { return x.at.Compare(y.at) })
	lines := make([]string, len(long))
	for i, a := range long {
		lines[i] = fmt.Sprintf("%s %s of %s to node %s (%d), since %.3f", a.method, a.path, cmp.Or(a.story, "no story"), a.node.name, a.pid, a.at.Sub(b.begun).Seconds())
	}
	return lines
}

func (b *book) outage(s span) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outages = append(b.outages, s)
}

func (b *book) silent(s silence) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silences = append(b.silences, s)
}

// requests are those so far.
func (b *book) requests() []*exchange {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked)
}

// ruled reports whether there was a case of a law.
func (b *book) ruled(law string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[law] > 0 || len(b.broken[law]) > 0
}

func (b *book) rule(law string, ok bool, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		b.held[law]++
		return
	}
	why := fmt.Sprintf("%.3f: %s", time.Since(b.begun).Seconds(), fmt.Sprintf(format, args...))
	b.broken[law] = append(b.broken[law], why)
	if testing.Verbose() && len(b.broken[law]) == 1 {
		fmt.Fprintln(os.Stderr, law, why)
	}
}

func (b *book) breaks(law, format string, args ...any) { b.rule(law, false, format, args...) }

func (b *book) breaches(law string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.broken[law])
}

// report fails t for each law that was broken.
func (b *book) report(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, law := range clusterLaws {
		for i, why := range b.broken[law] {
			if i == 3 {
				t.Errorf("%s: and %d more", law, len(b.broken[law])-i)
				break
			}
			t.Errorf("%s: %s", law, why)
		}
	}
}

// notVoid fails t for each of the laws of which no case was seen.
func (b *book) notVoid(t *testing.T, laws ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, law := range laws {
		if b.held[law] == 0 {
			t.Errorf("%s: no case was seen, the test is void", law)
		}
	}
	var lines []string
	for _, law := range slices.Sorted(maps.Keys(b.held)) {
		lines = append(lines, fmt.Sprintf("%6d %s", b.held[law], law))
	}
	t.Logf("cases that held:\n%s", strings.Join(lines, "\n"))
}

// outagesHold looks at what was answered while Postgres was down: an
// acknowledgement that begins and ends there has nothing to stand on.
func (b *book) outagesHold() {
	for _, s := range b.outages {
		for _, a := range b.requests() {
			if !s.within(a) || !a.mutates() || a.path == "" {
				continue
			}
			b.rule(lawNoFalse, !a.accepted(), "%s %s was answered %d by node %s", a.method, a.path, a.status, a.node.name)
		}
	}
}

// bucketsHold looks for refusals of buckets that hold far more than was asked.
// Those of visitors are small, and a stream too many is refused alike.
func (b *book) bucketsHold() {
	for _, a := range b.requests() {
		if a.status != 0 && !strings.HasPrefix(a.path, "/v1/embed/") {
			b.rule(lawIdle, a.status != 429, "%s %s was answered 429 by node %s at %.3f", a.method, a.path, a.node.name, a.end.Sub(b.begun).Seconds())
		}
	}
}

// silencesHold looks at what processes without a lease did: nothing.
func (b *book) silencesHold(calls []yardCall) {
	for _, s := range b.silences {
		quiet := true
		for _, a := range b.requests() {
			if a.pid != s.pid || a.at.Before(s.from) || a.at.After(s.to) || a.live || !strings.HasPrefix(a.path, "/v1/") {
				continue
			}
			quiet = false
			b.rule(lawSilent, !a.accepted() || a.end.After(s.to), "%s %s was answered %d by process %d, %s after its lease ran out", a.method, a.path, a.status, s.pid, a.at.Sub(s.from))
		}
		for _, c := range calls {
			if c.pid == s.pid && c.at.After(s.from) && c.at.Before(s.to) {
				b.breaks(lawSilent, "%s of %s was called by process %d, %s after its lease ran out", c.tool, c.order, s.pid, c.at.Sub(s.from))
			}
		}
		if s.before == 0 {
			b.breaks(lawSilent, "process %d called no tool before it lost its lease: the test is void", s.pid)
		}
		if quiet {
			b.breaks(lawSilent, "process %d was asked for nothing while it had no lease: the test is void", s.pid)
		}
	}
}
