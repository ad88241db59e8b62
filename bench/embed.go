package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// trusting has the service believe which address a client says to have: each visitor
// has one of its own, and no limit is lifted.
const trusting = "SVC_TRUSTED_PROXIES=127.0.0.0/8"

// visitorsOrigin is the page that all visitors are on.
const visitorsOrigin = "https://shop.example.com"

// embedKey is a key of the agent.
type embedKey struct {
	Key            string
	IdentitySecret string `json:"identity_secret"`
}

func (b *bed) embedKey(name string) (k embedKey, err error) {
	err = b.call("POST", "/v1/embed-keys", map[string]any{"agent_id": b.agent, "name": name, "allowed_origins": []string{visitorsOrigin},
		"rate_limit_per_min": 10000, "with_identity_secret": true}, &k)
	return k, err
}

// identity says that a visitor is an end user.
func (k embedKey) identity(sub string) string {
	enc := base64.RawURLEncoding
	text := enc.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + enc.EncodeToString(fmt.Appendf(nil, `{"sub":%q,"exp":%d}`, sub, time.Now().Add(time.Hour).Unix()))
	mac := hmac.New(sha256.New, []byte(k.IdentitySecret))
	mac.Write([]byte(text))
	return text + "." + enc.EncodeToString(mac.Sum(nil))
}

// visitor is a browser with a session and an address of its own.
type visitor struct {
	b             *bed
	header        string // lines of each of its requests
	token, thread string
}

// visit begins the nth visitor's session; user may be empty.
func (b *bed) visit(n int, key, user string) (*visitor, error) {
	v := &visitor{b: b, header: fmt.Sprintf("Origin: %s\r\nX-Forwarded-For: 10.%d.%d.%d\r\n", visitorsOrigin, n>>16&255, n>>8&255, n&255)}
	body := map[string]any{}
	if user != "" {
		body["user"] = map[string]any{"token": user}
	}
	var s struct{ Token string }
	status, answer, err := v.post("/v1/embed/session", "X-Svc-Embed-Key: "+key+"\r\n", body)
	if err == nil && status != 200 {
		err = fmt.Errorf("session: %d %s", status, answer)
	}
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(answer, &s)
	v.token = s.Token
	v.header += "Authorization: Bearer " + s.Token + "\r\n"
	return v, err
}

func (v *visitor) post(path, header string, body any) (int, []byte, error) {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	j, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req.Header.SetMethod("POST")
	req.SetRequestURI(v.b.base + path)
	for line := range strings.SplitSeq(v.header+header, "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			req.Header.Set(name, value)
		}
	}
	req.Header.SetContentType("application/json")
	req.SetBody(j)
	if err := v.b.http.Do(req, resp); err != nil {
		return 0, nil, err
	}
	return resp.StatusCode(), bytes.Clone(resp.Body()), nil
}

// say posts a message in the visitor's one thread, which begins with it. What is not
// accepted has no run.
func (v *visitor) say(content string) (status int, run string, err error) {
	body := map[string]any{"content": content}
	if v.thread != "" {
		body["thread_id"] = v.thread
	}
	status, answer, err := v.post("/v1/embed/messages", "", body)
	if err != nil || status != 202 {
		return status, "", err
	}
	var said struct {
		ThreadID string `json:"thread_id"`
		RunID    string `json:"run_id"`
	}
	err = json.Unmarshal(answer, &said)
	v.thread = said.ThreadID
	return status, said.RunID, err
}

func (v *visitor) follow(run string, line func([]byte) bool) error {
	return v.b.read("/v1/embed/runs/"+run+"/events", v.header, line)
}

// benchEmbed measures what a visitor's open stream takes beside a stream of the
// platform, and how soon visitors see the first word of an answer.
func benchEmbed(ctx context.Context, b *bed) error {
	streaming, closeAll := context.WithCancel(ctx)
	defer closeAll()
	if err := b.serve(ctx, simulated, "SVC_SSE_HEARTBEAT=10m", trusting, usualGC); err != nil {
		return err
	}
	runs, err := b.start(100, endless)
	if err != nil {
		return err
	}
	own, _, _, err := b.idle(streaming, func(i int, line func([]byte) bool) error { return b.follow(runs[i%len(runs)], "", line) })
	if err != nil {
		return err
	}
	b.stopService() // its streams end with it
	if err := b.embedStreams(streaming, own); err != nil {
		return err
	}
	closeAll()
	b.stopService()
	return b.embedTalk(ctx)
}

// embedStreams measures the streams of visitors; own is what those of the platform
// have taken. As there, a hundred runs are read: they are of a hundred end users, each
// of whom has a hundred browsers.
func (b *bed) embedStreams(ctx context.Context, own float64) error {
	const users = 100
	if err := b.serve(ctx, simulated, "SVC_SSE_HEARTBEAT=10m", trusting, usualGC); err != nil {
		return err
	}
	k, err := b.embedKey("streams")
	if err != nil {
		return err
	}
	visitors := make([]*visitor, idleWarm+idleStreams)
	begun := time.Now()
	if err := atOnce(64, len(visitors), func(i int) (err error) {
		visitors[i], err = b.visit(i, k.Key, k.identity(fmt.Sprint("user-", i%users)))
		return err
	}); err != nil {
		return err
	}
	minted := time.Since(begun)
	runs := make([]string, users)
	for i := range runs {
		status, run, err := visitors[i].say(endless)
		if err != nil || status != 202 {
			return fmt.Errorf("a message: %d %w", status, err)
		}
		runs[i] = run
	}
	each, g0, g1, err := b.idle(ctx, func(i int, line func([]byte) bool) error { return visitors[i].follow(runs[i%users], line) })
	if err != nil {
		return err
	}
	fmt.Printf("  %d sessions begun in %v\n", len(visitors), minted.Round(time.Millisecond))
	fmt.Printf("  %d visitors with an idle stream each: %.2f KiB of the process's memory each, their places and buckets included; of the platform %.2f (budget: at most 4); goroutines %.0f before, %.0f with them\n",
		idleStreams, each, own, g0, g1)
	return nil
}

// atOnce calls do for 0 to n-1, at most so many at a time, until one fails.
func atOnce(most, n int, do func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range most {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// visitorsCommand makes this binary the browsers of visitors.
const visitorsCommand = "peer-visitors"

const (
	talkers    = 1200
	talkRate   = 300 // messages a second, of all
	talkFor    = time.Minute
	talkPeers  = 2
	talkAnswer = "/delay 50ms\n/tokens 20" // the model says its first word at once
)

// visitors is what such a process is told, as JSON on its standard input. It begins
// when a further line comes.
type visitors struct {
	Base     string
	Keys     []string
	From, To int
	Rate     int
	For      time.Duration
}

// talked is what it answers.
type talked struct {
	Accepted []time.Duration // from a post to its 202
	Took     []time.Duration // from a post to the first word of its answer
	Whole    int             // answers that were heard to their end
	Statuses map[string]int  // of posts, and of streams that were no streams
}

// embedTalk measures the time from a visitor's message to the first word that is
// relayed.
func (b *bed) embedTalk(ctx context.Context) error {
	if err := b.serve(ctx, simulated, trusting); err != nil {
		return err
	}
	var keys []string
	for i := range 3 {
		k, err := b.embedKey(fmt.Sprint("talk-", i))
		if err != nil {
			return err
		}
		keys = append(keys, k.Key)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ready, ended sync.WaitGroup
	start := make(chan struct{})
	all, errs := make([]talked, talkPeers), make([]error, talkPeers)
	for i := range talkPeers {
		ready.Add(1)
		ended.Go(func() {
			isReady := sync.OnceFunc(ready.Done)
			defer isReady()
			errs[i] = func() error {
				peer := exec.CommandContext(ctx, self, visitorsCommand)
				peer.Stderr = os.Stderr
				in, err := peer.StdinPipe()
				if err != nil {
					return err
				}
				out, err := peer.StdoutPipe()
				if err != nil {
					return err
				}
				if err := peer.Start(); err != nil {
					return err
				}
				each := talkers / talkPeers
				from := json.NewDecoder(out)
				var is bool
				err = errors.Join(json.NewEncoder(in).Encode(visitors{b.base, keys, i * each, (i + 1) * each, talkRate / talkPeers, talkFor}), from.Decode(&is))
				isReady()
				<-start
				if err == nil {
					_, err = io.WriteString(in, "\n")
				}
				return errors.Join(err, from.Decode(&all[i]), in.Close(), peer.Wait())
			}()
		})
	}
	ready.Wait()
	u0, err := b.usage()
	if err != nil {
		return err
	}
	close(start)
	ended.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	u1, err := b.usage()
	if err != nil {
		return err
	}
	var accepted, took []time.Duration
	whole, statuses := 0, map[string]int{}
	for _, t := range all {
		accepted, took, whole = append(accepted, t.Accepted...), append(took, t.Took...), whole+t.Whole
		for status, n := range t.Statuses {
			statuses[status] += n
		}
	}
	fmt.Printf("  %d visitors of %d keys, %d messages/s for %v: from a post to the first relayed word p50 %v p95 %v p99 %v, at most %v (budget: p99 under 50 ms)\n",
		talkers, len(keys), talkRate, talkFor, quantile(took, .5), quantile(took, .95), quantile(took, .99), quantile(took, 1))
	fmt.Printf("  of that to the 202: p50 %v p95 %v p99 %v\n", quantile(accepted, .5), quantile(accepted, .95), quantile(accepted, .99))
	fmt.Printf("  %d answers heard, %d to their end; answered: %v; %.0f µs of the service's CPU a message\n", len(took), whole, statuses, float64((u1.cpu-u0.cpu).Microseconds())/float64(len(took)))
	for _, status := range slices.Sorted(maps.Keys(statuses)) {
		if status != "202" && status != "409" && status != "429" {
			return fmt.Errorf("%d requests were answered %s", statuses[status], status)
		}
	}
	if n := int(talkRate * talkFor.Seconds()); statuses["202"] < n*99/100 || whole != len(took) || len(took) != statuses["202"] {
		return fmt.Errorf("of %d messages %d were accepted, of %d the first word was heard, of %d the end", n, statuses["202"], len(took), whole)
	}
	return nil
}

// visitorsPeer is visitors who talk at an even rate, each in a thread of its own.
func visitorsPeer(ctx context.Context) error {
	var w visitors
	from := json.NewDecoder(os.Stdin)
	if err := from.Decode(&w); err != nil {
		return err
	}
	b := &bed{base: w.Base, http: newClient()}
	all := make([]*visitor, w.To-w.From)
	if err := atOnce(16, len(all), func(i int) (err error) {
		all[i], err = b.visit(w.From+i, w.Keys[i%len(w.Keys)], "")
		return err
	}); err != nil {
		return err
	}
	to := json.NewEncoder(os.Stdout)
	if err := to.Encode(true); err != nil {
		return err
	}
	if _, err := io.ReadFull(io.MultiReader(from.Buffered(), os.Stdin), make([]byte, 2)); err != nil { // the end of the first line, and the second
		return err
	}
	t := talked{Statuses: map[string]int{}}
	var mu sync.Mutex // guards t
	var wg sync.WaitGroup
	start := time.Now()
	every := time.Second / time.Duration(w.Rate)
	for i, v := range all {
		wg.Go(func() {
			for n := i; ; n += len(all) {
				due := start.Add(time.Duration(n) * every)
				if due.Sub(start) >= w.For {
					return
				}
				timer := time.NewTimer(time.Until(due))
				select {
				case <-timer.C:
				case <-ctx.Done():
					return
				}
				accepted, first, ended, status, err := v.converse()
				mu.Lock()
				t.Statuses[status]++
				if first > 0 {
					t.Accepted, t.Took = append(t.Accepted, accepted), append(t.Took, first)
				}
				if ended {
					t.Whole++
				}
				mu.Unlock()
				if err != nil {
					fmt.Fprintln(os.Stderr, "a visitor:", err)
				}
			}
		})
	}
	wg.Wait()
	return to.Encode(t)
}

// converse says something and hears the answer; accepted is the time to its 202, first
// that to its first word.
func (v *visitor) converse() (accepted, first time.Duration, ended bool, status string, err error) {
	sent := time.Now()
	code, run, err := v.say(talkAnswer)
	if err != nil {
		return 0, 0, false, "nothing", err
	}
	if run == "" {
		return 0, 0, false, fmt.Sprint(code), nil
	}
	accepted = time.Since(sent)
	status = fmt.Sprint(code)
	err = v.follow(run, func(l []byte) bool {
		switch {
		case bytes.HasPrefix(l, []byte("HTTP/1.1 ")) && !bytes.HasPrefix(l, []byte("HTTP/1.1 200")):
			status = "a stream: " + string(l[9:12])
			return false
		case first == 0 && bytes.Equal(l, []byte("event: llm.delta")):
			first = time.Since(sent)
		case bytes.HasPrefix(l, []byte("event: run.completed")):
			ended = true
			return false
		}
		return true
	})
	return accepted, first, ended, status, err
}
