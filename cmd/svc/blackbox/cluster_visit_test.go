package blackbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/schemas/id"
)

// visit is a thread of a visitor's, and what became of all posts to it.
type visit struct {
	*guest
	id, thread string
	posts      []*utterance
	filled     bool           // to the last message
	run        string         // the first one
	heard      []client.Frame // of its relay, over all disturbances; nil: it was not read

	// What there is when all is over.
	runs     map[string]*runAnswer
	replay   []client.Frame
	messages int
}

// takesAWhile is a message whose answer meets other posts and all openings of its
// stream.
const takesAWhile = "/delay 40ms\n/tokens 50\n/say done "

// visit begins a conversation, posts three messages more at a time, opens three
// streams at a time while a fourth reader follows, and asks for what is others'.
func (l *load) visit(ctx context.Context) error {
	x := &visit{id: l.name("visit"), guest: newGuest(l.c, l.public, "")}
	ctx = context.WithValue(ctx, telling{}, x.id)
	if err := x.begin(ctx); err != nil {
		return err
	}
	first, err := x.insist(ctx, "", takesAWhile+x.id, x.id)
	if err != nil || first.status != http.StatusAccepted {
		return fmt.Errorf("a visitor's first message: %w %s", err, first)
	}
	x.thread, x.run, x.posts = first.ThreadID, first.RunID, []*utterance{first}
	l.mu.Lock()
	l.visits = append(l.visits, x)
	other := l.visits[max(len(l.visits)-2, 0)]
	l.mu.Unlock()

	var wg sync.WaitGroup
	said, errs := make([]*utterance, 3), make([]error, 3)
	for i := range said {
		wg.Go(func() { said[i], errs[i] = x.insist(ctx, x.thread, takesAWhile+x.id, fmt.Sprint(x.id, "-", i)) })
	}
	l.places(ctx, x)
	wg.Wait()
	for i, u := range said {
		if errs[i] != nil {
			return errs[i]
		}
		if u.status != http.StatusAccepted && u.code != "EMBED_RUN_IN_FLIGHT" {
			return fmt.Errorf("a visitor's message: %s", u)
		}
		x.posts = append(x.posts, u)
	}
	if err := x.Follow(ctx, x.run, "", func(f client.Frame) error { x.heard = append(x.heard, f); return nil }); err != nil {
		return err
	}
	if other != x {
		return l.foreign(ctx, x, other)
	}
	return nil
}

// places opens three streams of a visitor at random nodes at a time. A stream counts
// as live from its head to its last frame, and what a client has not noticed for a
// moment does not count.
func (l *load) places(ctx context.Context, x *visit) {
	ctx, cancel := context.WithTimeout(ctx, 800*time.Millisecond)
	defer cancel()
	type life struct{ from, to time.Time }
	var mu sync.Mutex // guards lives and refused
	var lives []life
	refused := 0
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var s life
			watcher := *x.caller
			watcher.HTTP = &http.Client{Transport: tapped{x.HTTP.Transport, func(resp *http.Response, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err == nil && resp.StatusCode == http.StatusTooManyRequests {
					refused++
				}
				s.from = time.Now()
			}}}
			last := ""
			_, _ = watcher.FollowOnce(ctx, x.run, "", &last, func(client.Frame) error { s.to = time.Now(); return nil })
			mu.Lock()
			defer mu.Unlock()
			if !s.to.IsZero() {
				lives = append(lives, s)
			}
		})
	}
	wg.Wait()
	if len(lives) == 3 {
		from := slices.MaxFunc(lives, func(a, b life) int { return a.from.Compare(b.from) }).from
		to := slices.MinFunc(lives, func(a, b life) int { return a.to.Compare(b.to) }).to
		l.book.rule(lawPlaces, to.Sub(from) < skew, "%s: three streams of run %s are live for %s", x.id, x.run, to.Sub(from))
	} else if len(lives) == 2 && refused == 1 {
		l.book.rule(lawPlaces, true, "")
	}
}

// foreign asks as one visitor for what another one owns, and for what does not exist.
func (l *load) foreign(ctx context.Context, x, other *visit) error {
	for _, c := range []struct {
		method, path, theirs string
		body                 func(id string) any
	}{
		{"GET", "/v1/embed/threads/%s/messages", other.thread, nil},
		{"GET", "/v1/embed/runs/%s/events", other.run, nil},
		{"POST", "/v1/embed/runs/%s/cancel", other.run, nil},
		{"POST", "/v1/embed/messages", other.thread, func(id string) any { return object{"content": "/say no", "thread_id": id} }},
	} {
		var got [2]answer
		for i, which := range []string{c.theirs, id.NewAnywhere().String()} {
			path, body := c.path, any(nil)
			if c.body != nil {
				body = c.body(which)
			} else {
				path = fmt.Sprintf(c.path, which)
			}
			var err error
			if got[i], err = x.careful(ctx, c.method, path, "", body); err != nil {
				return err
			}
		}
		l.book.rule(lawForeign, got[0].status == http.StatusNotFound && got[0].status == got[1].status && bytes.Equal(got[0].body, got[1].body),
			"%s %s of another visitor is answered %s, and of nobody %s", c.method, c.path, got[0], got[1])
	}
	return nil
}

// fill fills a visitor's thread, the tenant's back end with it, and then everybody
// wants to have the last word.
func (l *load) fill(ctx context.Context) error {
	x := &visit{id: l.name("filled"), guest: newGuest(l.c, l.public, "")}
	ctx = context.WithValue(ctx, telling{}, x.id)
	if err := x.begin(ctx); err != nil {
		return err
	}
	first, err := x.insist(ctx, "", "/say "+x.id, x.id)
	if err != nil || first.status != http.StatusAccepted {
		return fmt.Errorf("a visitor's first message: %w %s", err, first)
	}
	x.thread, x.run, x.posts = first.ThreadID, first.RunID, []*utterance{first}
	post := func(key string) (*utterance, error) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			u := &utterance{content: "/say " + x.id, key: key, posted: x.thread, sent: time.Now()}
			a, err := l.c.careful(ctx, "POST", "/v1/threads/"+x.thread+"/messages", key, object{"content": u.content})
			if err != nil {
				return nil, err
			}
			if u.answered(a); u.code != "EMBED_RUN_IN_FLIGHT" {
				u.ThreadID = x.thread
				return u, nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	for i := range 98 {
		u, err := post(fmt.Sprint(x.id, "-", i))
		if err != nil {
			return err
		}
		if u.status != http.StatusAccepted {
			return fmt.Errorf("message %d of a thread: %s", i, u)
		}
		x.posts = append(x.posts, u)
	}
	said, errs := make([]*utterance, 4), make([]error, 4)
	each(len(said), len(said), func(i int) { said[i], errs[i] = post(fmt.Sprint(x.id, "-last-", i)) })
	more, err := x.insist(ctx, x.thread, "/say no", "one more")
	x.posts = append(append(x.posts, said...), more)
	if err := cmp.Or(err, errs[0], errs[1], errs[2], errs[3]); err != nil {
		return err
	}
	x.filled = true
	l.mu.Lock()
	l.visits = append(l.visits, x)
	l.mu.Unlock()
	return nil
}

// look reads what there is to know of a visit.
func (x *visit) look(ctx context.Context, c *caller) (err error) {
	if x.runs, err = c.runsOf(ctx, x.thread, x.posts); err != nil {
		return err
	}
	if x.filled {
		for path, cursor := "/v1/threads/"+x.thread+"/messages?limit=100", ""; ; {
			var page struct {
				Items      []heldMessage
				NextCursor *string `json:"next_cursor"`
			}
			a, err := c.careful(ctx, "GET", path+cursor, "", nil)
			if err != nil {
				return err
			}
			if err := a.decode(&page); err != nil {
				return err
			}
			x.messages += len(page.Items)
			if page.NextCursor == nil {
				break
			}
			cursor = "&cursor=" + *page.NextCursor
		}
	}
	if len(x.heard) == 0 {
		return nil
	}
	return x.Follow(ctx, x.run, "", func(f client.Frame) error { x.replay = append(x.replay, f); return nil })
}

// hold holds the laws of embed threads against what was found.
func (x *visit) hold(b *book, listed map[string]bool, twice map[string]string) {
	accepted, full := 0, 0
	for _, u := range x.posts {
		if u.code == "EMBED_THREAD_FULL" {
			full++
		}
		if u.status != http.StatusAccepted {
			continue
		}
		accepted++
		b.rule(lawKeyed, twice[u.RunID] == "", "run %s is that of %s and of %s", u.RunID, twice[u.RunID], x.id)
		twice[u.RunID] = x.id
		r := x.runs[u.RunID]
		b.rule(lawAccepted, r != nil && listed[u.RunID], "run %s of %s was accepted and is not there (listed: %t)", u.RunID, x.id, listed[u.RunID])
		if r != nil {
			b.rule(lawAccepted, r.Run.Status == "succeeded", "run %s of %s is %s %+v", u.RunID, x.id, r.Run.Status, r.Run.Error)
		}
	}
	wrong, one, refused := inTime(x.posts, x.runs)
	if len(wrong) > 0 || one > 1 || refused > 0 {
		b.rule(lawTurn, len(wrong) == 0, "thread %s of %s: %v", x.thread, x.id, wrong)
	}
	if x.filled {
		b.rule(lawRoom, x.messages == 200 && accepted == 100 && full > 0, "thread %s of %s took %d posts, refused %d as full, and has %d messages", x.thread, x.id, accepted, full, x.messages)
	}
	if len(x.heard) > 0 {
		wrong := relayed(x.heard, x.replay)
		b.rule(lawRelay, len(wrong) == 0, "run %s of %s: %v", x.run, x.id, wrong)
	}
}

// murmuring is the body of a stream that says something now and then.
func murmuring(ctx context.Context) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		for i := 1; pauseFor(ctx, 20*time.Millisecond); i++ {
			data, _ := json.Marshal(object{"type": "llm.delta", "idx": 0, "text": "so "})
			if _, err := fmt.Fprintf(in, "event: llm.delta\nid: 2.%d\ndata: %s\n\n", i, data); err != nil {
				return
			}
		}
		in.CloseWithError(context.Cause(ctx))
	}()
	return out
}
