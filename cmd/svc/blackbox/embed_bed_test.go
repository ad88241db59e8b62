package blackbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// guest is a visitor's browser: it has no API key, sends the origin of its page, and has its own address
// according to a trusted proxy.
type guest struct {
	*caller
	key, address, sub string // sub: the person in its identity token, empty: anonymous

	Token, Visitor string
	VisitorID      string `json:"visitor_id"`
	EndUserID      string `json:"end_user_id"`
}

// behindProxy makes nodes trust a guest's forwarded address, from this machine and from the test's own
// networks.
const behindProxy = "SVC_TRUSTED_PROXIES=127.0.0.0/8,10.213.77.0/24"

var guests atomic.Int64 // counts guests, for their addresses

// newGuest returns a browser without a session; it uses the connections of c.
func newGuest(c *caller, key, sub string) *guest {
	n := guests.Add(1)
	g := &guest{key: key, sub: sub, address: fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)}
	bare := *c
	bare.Key, bare.Tenant = "", ""
	bare.HTTP = &http.Client{Transport: guise{c.HTTP.Transport, g}}
	g.caller = &bare
	return g
}

// guise adds a guest's headers to a request.
type guise struct {
	http.RoundTripper
	*guest
}

func (x guise) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if run, ok := strings.CutPrefix(r.URL.Path, "/v1/runs/"); ok {
		r.URL.Path = "/v1/embed/runs/" + run
	}
	r.Header.Del("X-Tenant-Id")
	r.Header.Set("Origin", page)
	if r.Header.Get("X-Forwarded-For") == "" {
		r.Header.Set("X-Forwarded-For", x.address)
	}
	switch r.URL.Path {
	case "/v1/embed/config", "/v1/embed/session":
		r.Header.Del("Authorization")
		r.Header.Set("X-Svc-Embed-Key", x.guest.key)
	default:
		r.Header.Set("Authorization", "Bearer "+x.Token)
	}
	return x.RoundTripper.RoundTrip(r)
}

// begin begins a session, or continues one.
func (g *guest) begin(ctx context.Context) error {
	body := object{}
	if g.Visitor != "" {
		body["visitor"] = g.Visitor
	}
	if g.sub != "" {
		body["user"] = object{"token": g.sub}
	}
	a, err := g.careful(ctx, "POST", "/v1/embed/session", "", body)
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("a session of visitor %s: %s", g.VisitorID, a)
	}
	if err != nil {
		return err
	}
	return a.decode(g)
}

// utterance is a message of a guest with its response.
type utterance struct {
	content, key string
	posted       string // the thread that it was posted to, empty: a new one
	sent, heard  time.Time
	status       int
	code         string
	header       http.Header

	ThreadID  string `json:"thread_id"`
	RunID     string `json:"run_id"`
	MessageID string `json:"message_id"`
}

func (u *utterance) String() string {
	return fmt.Sprintf("%d %s thread %s run %s", u.status, u.code, u.ThreadID, u.RunID)
}

// say posts a message once; thread may be empty.
func (g *guest) say(ctx context.Context, thread, content string) (*utterance, error) {
	u := &utterance{content: content, posted: thread, sent: time.Now()}
	body := object{"content": content}
	if thread != "" {
		body["thread_id"] = thread
	}
	a, err := g.do(ctx, "POST", "/v1/embed/messages", body)
	return u.answered(a), err
}

// insist posts a message under an Idempotency-Key until it gets a final response.
func (g *guest) insist(ctx context.Context, thread, content, key string) (*utterance, error) {
	u := &utterance{content: content, key: key, posted: thread, sent: time.Now()}
	body := object{"content": content}
	if thread != "" {
		body["thread_id"] = thread
	}
	a, err := g.careful(ctx, "POST", "/v1/embed/messages", key, body)
	return u.answered(a), err
}

func (u *utterance) answered(a answer) *utterance {
	u.heard, u.status, u.code, u.header = time.Now(), a.status, a.code(), a.header
	_ = a.decode(u) // a refusal may lack these fields
	return u
}

// opened is a guest's open stream, or its refusal.
type opened struct {
	status int
	code   string
	header http.Header
	node   *member
	leave  context.CancelFunc
	ended  chan struct{} // closed at the stream's end
	at     time.Time     // the time of its end
	frames []client.Frame
}

// open opens the stream of a run at a node; ctx ends it.
func (g *guest) open(ctx context.Context, m *member, run string) (*opened, error) {
	ctx, cancel := context.WithCancel(m.on(ctx))
	o := &opened{node: m, leave: cancel, ended: make(chan struct{})}
	heads := make(chan error, 1)
	watcher := *g.caller
	watcher.HTTP = &http.Client{Transport: tapped{g.HTTP.Transport, func(resp *http.Response, err error) {
		if err == nil {
			o.status, o.header = resp.StatusCode, resp.Header
		}
		heads <- err
	}}}
	go func() {
		defer close(o.ended)
		last := ""
		_, err := watcher.FollowOnce(ctx, run, "", &last, func(f client.Frame) error {
			o.frames = append(o.frames, f)
			return nil
		})
		if refused, ok := err.(*client.APIError); ok {
			o.code = refused.Code
		}
		o.at = time.Now()
	}()
	if err := <-heads; err != nil {
		cancel()
		return nil, err
	}
	if o.status != http.StatusOK {
		<-o.ended
		cancel()
	}
	return o, nil
}

func (o *opened) close() {
	o.leave()
	<-o.ended
}

// tapped signals the header of each response.
type tapped struct {
	http.RoundTripper
	head func(*http.Response, error)
}

func (x tapped) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := x.RoundTripper.RoundTrip(r)
	x.head(resp, err)
	return resp, err
}

// skew is how far the clocks of nodes and of the test may differ on one machine.
const skew = 200 * time.Millisecond

// inTime returns the violations among the posts to one thread, given their runs: replies are made one at a
// time, and a refused visitor gets a run of the thread that had not ended when it posted (security.md,
// Invariants 7). It returns the numbers of posts accepted and refused.
func inTime(posts []*utterance, runs map[string]*runAnswer) (wrong []string, accepted, refused int) {
	var said []*runAnswer
	for _, u := range posts {
		r := runs[u.RunID]
		switch {
		case u.status == http.StatusAccepted && r == nil:
			wrong = append(wrong, fmt.Sprintf("run %s was accepted and is not there", u.RunID))
		case u.status == http.StatusAccepted:
			accepted++
			said = append(said, r)
		case u.code == "EMBED_RUN_IN_FLIGHT" && r == nil:
			wrong = append(wrong, fmt.Sprintf("run %s is in flight and is none of the thread's", u.RunID))
		case u.code == "EMBED_RUN_IN_FLIGHT":
			refused++
			if end := r.Run.FinishedAt; end != nil && end.Add(skew).Before(u.sent) {
				wrong = append(wrong, fmt.Sprintf("run %s was in flight %s after its end", u.RunID, u.sent.Sub(*end)))
			}
		}
	}
	slices.SortFunc(said, func(x, y *runAnswer) int { return cmp.Compare(x.Run.ID, y.Run.ID) })
	slices.SortStableFunc(said, func(x, y *runAnswer) int { return x.Run.CreatedAt.Compare(y.Run.CreatedAt) })
	for i, r := range said[:max(len(said)-1, 0)] {
		next := said[i+1]
		if r.Run.FinishedAt == nil || r.Run.FinishedAt.After(next.Run.CreatedAt.Add(skew)) {
			wrong = append(wrong, fmt.Sprintf("run %s was accepted at %s, while run %s was going on until %v", next.Run.ID, next.Run.CreatedAt, r.Run.ID, r.Run.FinishedAt))
		}
	}
	return wrong, accepted, refused
}

// runsOf reads the runs of the thread that posts name, each after its end.
func (c *caller) runsOf(ctx context.Context, thread string, posts []*utterance) (map[string]*runAnswer, error) {
	runs := map[string]*runAnswer{}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, u := range posts {
		for u.RunID != "" && runs[u.RunID] == nil {
			r := new(runAnswer)
			a, err := c.careful(ctx, "GET", "/v1/runs/"+u.RunID, "", nil)
			if err == nil && a.status == http.StatusOK {
				err = a.decode(r)
			}
			if err != nil {
				return nil, err
			}
			if r.Run.ThreadID == nil || *r.Run.ThreadID != thread {
				break
			}
			if terminalStatus[r.Run.Status] {
				runs[u.RunID] = r
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil, fmt.Errorf("run %s is %s: %w", u.RunID, r.Run.Status, ctx.Err())
			}
		}
	}
	return runs, nil
}

// relayed returns the differences between the frames received from a run over any number of streams and the
// replayed relay of the ended run.
func relayed(heard, replay []client.Frame) (wrong []string) {
	last := [2]int64{-1, 0}
	steps := map[int]*strings.Builder{}
	newest := -1
	for i, f := range heard {
		at := position(f.ID)
		if slices.Compare(at[:], last[:]) <= 0 {
			wrong = append(wrong, fmt.Sprintf("id %s comes after %d.%d", f.ID, last[0], last[1]))
		}
		last = at
		if f.Terminal() != (i == len(heard)-1) {
			wrong = append(wrong, fmt.Sprintf("terminal frame at %d of %d", i, len(heard)))
		}
		if f.Type == "llm.delta" {
			var d struct {
				Idx  int
				Text string
			}
			_ = json.Unmarshal(f.Data, &d)
			if steps[d.Idx] == nil {
				steps[d.Idx] = new(strings.Builder)
			}
			steps[d.Idx].WriteString(d.Text)
			newest = max(newest, d.Idx)
		}
	}
	if live, again := facts(heard), facts(replay); !slices.Equal(live, again) {
		wrong = append(wrong, fmt.Sprintf("heard %v, replayed %v", live, again))
	}
	if n := len(heard); n > 0 && heard[n-1].Type == "run.completed" {
		var end struct{ Text *string }
		_ = json.Unmarshal(heard[n-1].Data, &end)
		if end.Text == nil || steps[newest] == nil || steps[newest].String() != *end.Text {
			wrong = append(wrong, fmt.Sprintf("the text heard is not that of %s", heard[n-1].Data))
		}
	}
	return wrong
}

// position returns the place of a frame in its run's stream.
func position(frameID string) (at [2]int64) {
	seq, off, _ := strings.Cut(frameID, ".")
	at[0], _ = strconv.ParseInt(seq, 10, 64)
	at[1], _ = strconv.ParseInt(off, 10, 64)
	return at
}

// newEmbedKey creates an embed key of an agent.
func (c *caller) newEmbedKey(t *testing.T, ctx context.Context, agent, name string, more object) (k embedKeyView) {
	t.Helper()
	body := object{"agent_id": agent, "name": name, "allowed_origins": []string{page}}
	for field, v := range more {
		body[field] = v
	}
	c.ask(t, ctx, 201, "POST", "/v1/embed-keys", body, &k)
	return k
}

// visitor begins a session of a new browser.
func (c *caller) visitor(t *testing.T, ctx context.Context, key, sub string) *guest {
	t.Helper()
	g := newGuest(c, key, sub)
	if err := g.begin(ctx); err != nil {
		t.Fatal(err)
	}
	return g
}
