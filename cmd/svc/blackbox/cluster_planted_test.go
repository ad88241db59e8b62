package blackbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"agentsvc/schemas/webhook"
)

// lie is a fault on the way between clients and the service: to the clients, and
// so to the laws, it is a fault of the service.
type lie struct {
	n      atomic.Int64
	hidden atomic.Pointer[string] // a path that answers no more
	load   *load
	ask    func(*lie, *http.Request)
	answer func(*lie, *http.Request, *http.Response)
	tell   func(*lie, *dispatch) bool // of an attempt, to its endpoint; false: it is lost
}

func (x *lie) asks(r *http.Request) *http.Request {
	if x.ask == nil {
		return r
	}
	r = r.Clone(r.Context())
	x.ask(x, r)
	return r
}

func (x *lie) answers(r *http.Request, resp *http.Response) {
	if x.answer != nil {
		x.answer(x, r, resp)
	}
}

// nth is every nth call, but not the first one.
func (x *lie) nth(n int64) bool { return x.n.Add(1)%n == 0 }

// rewrites has each of an answer's texts be another one.
func rewrites(resp *http.Response, oldNew ...string) {
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	text := strings.NewReplacer(oldNew...).Replace(string(b))
	resp.Body, resp.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(text), errReader{err})), -1
}

// errReader ends as another reader has ended.
type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	return 0, io.EOF
}

// framed has a stream lose or repeat frames.
type framed struct {
	io.ReadCloser
	each func(frame []byte) []byte
	in   []byte
	out  bytes.Buffer
}

func (f *framed) Read(p []byte) (int, error) {
	for f.out.Len() == 0 {
		buf := make([]byte, 8<<10)
		n, err := f.ReadCloser.Read(buf)
		f.in = append(f.in, buf[:n]...)
		for {
			i := bytes.Index(f.in, []byte("\n\n"))
			if i < 0 {
				break
			}
			f.out.Write(f.each(f.in[:i+2]))
			f.in = f.in[i+2:]
		}
		if err != nil && f.out.Len() == 0 {
			return 0, err
		}
	}
	return f.out.Read(p)
}

// frames has each frame of a stream be another one.
func frames(resp *http.Response, each func([]byte) []byte) {
	if resp.StatusCode == http.StatusOK {
		resp.Body = &framed{ReadCloser: resp.Body, each: each}
	}
}

func isPost(r *http.Request, end string) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, end)
}

func isStream(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/events")
}

// isRun reports whether a run is read.
func isRun(r *http.Request) bool {
	id, ok := strings.CutPrefix(r.URL.Path, "/v1/runs/")
	return ok && r.Method == http.MethodGet && !strings.Contains(id, "/")
}

// isChore reports whether a run is a chore's.
func (l *load) isChore(run string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.chores, func(x *chore) bool { return x.run == run })
}

// runIDs are those that the events of runs name.
var runIDs = regexp.MustCompile(`"run_id":"[^"]*"`)

// twoCount has decisions that came too late be answered as if they counted.
func twoCount(_ *lie, r *http.Request, resp *http.Response) {
	key := r.Header.Get("Idempotency-Key") // at most one of the two is the one that counts
	if resp.StatusCode == http.StatusConflict && (strings.HasSuffix(key, "approve4") || strings.HasSuffix(key, "approve6")) {
		resp.Body.Close()
		resp.StatusCode, resp.Body, resp.ContentLength = http.StatusOK, io.NopCloser(strings.NewReader(`{"status":"approved","approvals_so_far":1}`)), -1
	}
}

// wrong are faults, and the law that has to find each of them.
var wrong = []struct {
	name string
	law  string
	lie  lie
	does func(ctx context.Context, s *shaker) // shakes the bed; nil: it is not shaken
}{
	{"a run that was accepted is not there", lawAccepted, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		path := r.URL.Path
		if isRun(r) && resp.StatusCode == http.StatusOK && x.load.isChore(strings.TrimPrefix(path, "/v1/runs/")) {
			x.hidden.CompareAndSwap(nil, &path)
		}
		if hidden := x.hidden.Load(); hidden != nil && path == *hidden {
			resp.StatusCode = http.StatusNotFound
		}
	}}, nil},
	{"a post makes two runs", lawAccepted, lie{ask: func(x *lie, r *http.Request) {
		if isPost(r, "/runs") && x.nth(2) {
			r.Header.Set("Idempotency-Key", r.Header.Get("Idempotency-Key")+"another")
		}
	}}, nil},
	{"an idempotency key is forgotten", lawKeyed, lie{ask: func(x *lie, r *http.Request) {
		if isPost(r, "/runs") && x.nth(2) {
			r.Header.Del("Idempotency-Key")
		}
	}}, nil},
	{"two decisions count", lawCrowd, lie{answer: twoCount}, nil},
	{"a run that has ended goes on", lawFinal, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isRun(r) && x.nth(9) {
			rewrites(resp, `"status":"succeeded"`, `"status":"failed"`)
		}
	}}, nil},
	{"a cancelled run is completed", lawFinal, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isStream(r) {
			frames(resp, func(f []byte) []byte { return bytes.ReplaceAll(f, []byte("run.failed"), []byte("run.completed")) })
		}
	}}, nil},
	{"a read is behind the stream", lawReadEnd, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isRun(r) && r.Context().Value(chosen{}) != nil {
			rewrites(resp, `"status":"succeeded"`, `"status":"running"`)
		}
	}}, nil},
	{"a revoked key goes on", lawRevoked, lie{ask: func(x *lie, r *http.Request) {
		if r.Method == http.MethodGet && !isStream(r) {
			r.Header.Set("Authorization", "Bearer "+x.load.c.Key)
		}
	}}, nil},
	{"a stream outlives its key", lawCutOff, lie{ask: func(x *lie, r *http.Request) {
		if isStream(r) {
			r.Header.Set("Authorization", "Bearer "+x.load.c.Key)
		}
	}}, nil},
	{"a frame is lost", lawStream, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isStream(r) && x.nth(4) {
			frames(resp, func(f []byte) []byte {
				if bytes.Contains(f, []byte("event: step.started")) {
					return nil
				}
				return f
			})
		}
	}}, nil},
	{"a frame comes twice", lawStream, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isStream(r) && x.nth(4) {
			frames(resp, func(f []byte) []byte {
				if bytes.Contains(f, []byte("event: step.started")) {
					return bytes.Repeat(f, 2)
				}
				return f
			})
		}
	}}, nil},
	{"live text has a gap", lawText, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isStream(r) {
			frames(resp, func(f []byte) []byte {
				if bytes.Contains(f, []byte("event: llm.delta")) && x.nth(20) {
					return nil
				}
				return f
			})
		}
	}}, nil},
	{"a bucket that is full refuses", lawIdle, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isRun(r) && x.nth(7) {
			resp.StatusCode = http.StatusTooManyRequests
		}
	}}, nil},
	{"a bucket is two", lawAdmits, lie{ask: func(x *lie, r *http.Request) {
		if r.URL.Path == "/v1/embed/config" && x.nth(2) {
			r.Header.Set("X-Forwarded-For", "203.0.113.1") // of another one
		}
	}}, nil},
	{"Retry-After is too short", lawRetry, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if r.URL.Path == "/v1/embed/config" && resp.StatusCode == http.StatusTooManyRequests {
			resp.Header.Set("Retry-After", "0")
		}
	}}, nil},
	{"what flows into an empty bucket is lost", lawFlows, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if r.URL.Path != "/v1/embed/config" {
			return
		}
		if resp.StatusCode == http.StatusTooManyRequests {
			x.hidden.Store(&r.URL.Path)
		} else if x.hidden.Load() != nil {
			resp.StatusCode = http.StatusTooManyRequests
		}
	}}, nil},
	{"a reader suffers from another one", lawStalled, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isStream(r) {
			frames(resp, func(f []byte) []byte {
				if bytes.Contains(f, []byte("stalled-")) && bytes.Contains(f, []byte("event: llm.delta")) {
					return nil
				}
				return f
			})
		}
	}}, nil},
	{"a message is posted twice", lawThreads, lie{ask: func(x *lie, r *http.Request) {
		if !isPost(r, "/messages") || !x.nth(3) {
			return
		}
		body, err := r.GetBody()
		if err != nil {
			return
		}
		text, err := io.ReadAll(body)
		if err != nil || !bytes.Contains(text, []byte("talk-")) {
			return
		}
		again := r.Clone(context.WithoutCancel(r.Context()))
		again.Body, again.RequestURI = io.NopCloser(bytes.NewReader(text)), ""
		again.URL.Host = x.load.nodes[0].addr
		again.Header.Del("Idempotency-Key")
		if resp, err := http.DefaultClient.Do(again); err == nil {
			resp.Body.Close()
		}
	}}, nil},
	{"two replies are made at a time", lawTurn, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if r.URL.Path == "/v1/embed/messages" && resp.StatusCode == http.StatusConflict {
			resp.StatusCode = http.StatusAccepted
		}
	}}, nil},
	{"a full thread takes one more", lawRoom, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if r.Header.Get("Idempotency-Key") == "one more" && resp.StatusCode == http.StatusConflict {
			resp.StatusCode = http.StatusAccepted
		}
	}}, nil},
	{"a third stream is served", lawPlaces, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if strings.HasPrefix(r.URL.Path, "/v1/embed/") && isStream(r) && resp.StatusCode == http.StatusTooManyRequests {
			resp.Body.Close()
			resp.StatusCode, resp.Body, resp.ContentLength = http.StatusOK, murmuring(r.Context()), -1
		}
	}}, nil},
	{"a relay has a gap", lawRelay, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if strings.HasPrefix(r.URL.Path, "/v1/embed/") && isStream(r) {
			frames(resp, func(f []byte) []byte {
				if bytes.Contains(f, []byte("event: llm.delta")) && x.nth(20) {
					return nil
				}
				return f
			})
		}
	}}, nil},
	{"a foreign id is told from a random one", lawForeign, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if strings.HasPrefix(r.URL.Path, "/v1/embed/") && resp.StatusCode == http.StatusNotFound && x.nth(2) {
			resp.StatusCode = http.StatusForbidden
		}
	}}, nil},
	{"a tool is called twice", lawMutating, lie{ask: func(x *lie, r *http.Request) {
		y := x.load.yard
		y.mu.Lock()
		defer y.mu.Unlock()
		if len(y.all) > 0 && y.all[len(y.all)-1].tool == stampTool {
			y.all = append(y.all, y.all[len(y.all)-1])
		}
	}}, nil},
	{"a repeated call has another key", lawMutating, lie{ask: func(x *lie, r *http.Request) {
		y := x.load.yard
		y.mu.Lock()
		defer y.mu.Unlock()
		if len(y.all) > 0 && y.all[len(y.all)-1].tool == markTool && x.nth(2) {
			c := y.all[len(y.all)-1]
			c.args = strings.Replace(c.args, c.key, "another", 1)
			y.all = append(y.all, c)
		}
	}}, nil},
	{"an endpoint is not told of a run", lawHooks, lie{tell: func(x *lie, d *dispatch) bool {
		id := d.header.Get(webhook.DeliveryHeader)
		x.hidden.CompareAndSwap(nil, &id)
		return id != *x.hidden.Load()
	}}, nil},
	{"an endpoint is told of a run that there is not", lawHooks, lie{tell: func(x *lie, d *dispatch) bool {
		d.body = runIDs.ReplaceAll(d.body, []byte(`"run_id":"`+runID+`"`))
		d.sign(-1)
		return true
	}}, nil},
	{"an endpoint is told that a run has failed which succeeded", lawHooks, lie{tell: func(x *lie, d *dispatch) bool {
		d.body = bytes.ReplaceAll(d.body, []byte("run.completed"), []byte("run.failed"))
		d.sign(-1)
		return true
	}}, nil},
	{"a repeated attempt has other bytes", lawRepeats, lie{tell: func(x *lie, d *dispatch) bool {
		d.body = append(d.body, bytes.Repeat([]byte(" "), int(x.n.Add(1)))...)
		d.sign(-1)
		return true
	}}, nil},
	{"a repeated attempt has another id", lawRepeats, lie{tell: func(x *lie, d *dispatch) bool {
		if x.nth(2) {
			d.header.Set(webhook.DeliveryHeader, d.header.Get(webhook.DeliveryHeader)+"again")
		}
		return true
	}}, nil},
	{"an attempt is signed with a secret that was replaced", lawSecret, lie{tell: func(x *lie, d *dispatch) bool {
		d.sign(0)
		return true
	}}, nil},
	{"an attempt is signed with nobody's secret", lawSecret, lie{tell: func(x *lie, d *dispatch) bool {
		d.header.Set(webhook.SignatureHeader, webhook.Sign("nobody's", time.Now(), d.body))
		return true
	}}, nil},
	{"a workflow's run that has succeeded has failed", lawFlowEnds, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isRun(r) {
			rewrites(resp, `"status":"succeeded"`, `"status":"failed"`)
		}
	}}, nil},
	{"a variable has another value", lawFlowOutput, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isRun(r) {
			rewrites(resp, `"who":"flow`, `"who":"other`)
		}
	}}, nil},
	{"a node starts twice", lawNodeOnce, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isStream(r) {
			frames(resp, func(f []byte) []byte {
				if bytes.Contains(f, []byte("event: node.started")) {
					return bytes.Repeat(f, 2)
				}
				return f
			})
		}
	}}, nil},
	{"a child does not know its parent", lawChildOnce, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if r.URL.Path == "/v1/runs" {
			rewrites(resp, `"parent_run_id":"`, `"another":"`)
		}
	}}, nil},
	{"a node calls twice what it may call once", lawNodeCalls, lie{ask: func(x *lie, r *http.Request) {
		y := x.load.yard
		y.mu.Lock()
		defer y.mu.Unlock()
		if i := slices.IndexFunc(y.all, func(c yardCall) bool { return c.tool == stampTool }); i >= 0 {
			y.all = append(y.all, y.all[i])
		}
	}}, nil},
	{"an event that is repeated is another one", lawEvents, lie{ask: func(x *lie, r *http.Request) {
		if !isPost(r, "/events") {
			return
		}
		body, err := r.GetBody()
		if err != nil {
			return
		}
		text, err := io.ReadAll(body)
		if err == nil {
			text = bytes.Replace(text, []byte(`"id":"1"`), fmt.Appendf(nil, `"id":"again %d"`, x.n.Add(1)), 1)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		}
	}}, nil},
	{"an approval outlives its run", lawAsked, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if r.URL.Path == "/v1/approvals" {
			rewrites(resp, `"status":"cancelled"`, `"status":"pending"`)
		}
	}}, nil},
	{"a stream does not tell that a node has ended", lawFlowFrames, lie{answer: func(x *lie, r *http.Request, resp *http.Response) {
		if isStream(r) && x.nth(2) {
			frames(resp, func(f []byte) []byte {
				if bytes.Contains(f, []byte("event: node.completed")) && bytes.Contains(f, []byte(`"status":"succeeded"`)) {
					return nil
				}
				return f
			})
		}
	}}, nil},
	{"two decisions on a gate count", lawOneOutcome, lie{answer: twoCount}, nil},
	{"what Postgres does not know is acknowledged", lawNoFalse, lie{}, func(ctx context.Context, s *shaker) {
		from := time.Now()
		pauseFor(ctx, time.Second)
		s.load.book.outage(span{from, time.Now()})
	}},
	{"a node without a lease goes on", lawSilent, lie{}, func(ctx context.Context, s *shaker) {
		m := s.nodes[0]
		quiet := silence{pid: m.pid(), before: s.busy(ctx, m)}
		quiet.from = time.Now()
		pauseFor(ctx, time.Second)
		quiet.to = time.Now()
		s.load.book.silent(quiet)
	}},
}
