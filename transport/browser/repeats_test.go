package browser

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"agentsvc/schemas/skill"
	"agentsvc/schemas/testkit"
)

// shop is a site whose one button posts. It counts the posts and answers them as it is told.
type shop struct {
	in        *Browser
	url, host string
	posts     atomic.Int64
	answer    func(w http.ResponseWriter, r *http.Request)
}

// act are the ways in which the pages of a shop post. By then a page has connections that it uses again.
var act = map[string]string{
	"a form":   `<form method=post action=/act><button id=act>Do it</button></form>`,
	"a script": `<button id=act onclick="warm().then(() => fetch('/act', { method: 'POST', body: 'x=1' })).then(r => r.text()).then(said, () => said('failed'))">Do it</button>`,
	// The press of the button is enough, and the button is gone before it is released.
	"a press": `<button id=act onmousedown="this.remove(); fetch('/act', { method: 'POST', body: 'x=1' }).then(r => r.text()).then(said, () => said('failed'))">Do it</button>`,
	// The page rests before it posts: the click has landed by then.
	"a timer":  `<button id=act onclick="setTimeout(() => warm().then(() => fetch('/act', { method: 'POST', body: 'x=1' })).then(r => r.text()).then(said, () => said('failed')), 300)">Do it</button>`,
	"a worker": `<button id=act onclick="new Worker('/worker.js').onmessage = m => said(m.data)">Do it</button>`,
	// The frame is of another site, so that another process shows it.
	"a frame":  `<iframe id=of src="OTHER/frame"></iframe><button id=act onclick="window.onmessage = m => said(m.data); document.getElementById('of').contentWindow.postMessage('act', '*')">Do it</button>`,
	"a beacon": `<button id=act onclick="said(navigator.sendBeacon('/act', 'x=1') ? 'done' : 'failed')">Do it</button>`,
	"a socket": `<button id=act onclick="const w = new WebSocket(location.href.replace(/^http/, 'ws') + 'socket'); w.onopen = () => w.send('x=1'); w.onmessage = m => said(m.data)">Do it</button>`,
}

func newShop(t *testing.T, in *Browser, serve func(http.Handler) *httptest.Server, by string, answer func(http.ResponseWriter, *http.Request)) *shop {
	t.Helper()
	s := &shop{in: in, answer: answer}
	other := ""
	m := http.NewServeMux()
	m.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!doctype html><title>Shop</title><p id=said></p><script>const said = t => { document.getElementById('said').textContent = t };
const warm = () => Promise.all([1, 2, 3].map(n => fetch('/ping?' + n).then(r => r.text())));</script>`+strings.ReplaceAll(act[by], "OTHER", other))
	})
	m.HandleFunc("GET /frame", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!doctype html><p>Frame</p><script>onmessage = m => fetch('/act', { method: 'POST', body: 'x=1' }).then(r => r.text()).then(t => m.source.postMessage(t, '*'), () => m.source.postMessage('failed', '*'))</script>`)
	})
	m.HandleFunc("GET /worker.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		fmt.Fprint(w, `fetch('/act', { method: 'POST', body: 'x=1' }).then(r => r.text()).then(t => postMessage(t), () => postMessage('failed'))`)
	})
	m.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "pong") })
	m.HandleFunc("POST /act", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.posts.Add(1)
		s.answer(w, r)
	})
	m.Handle("GET /socket", websocket.Handler(func(c *websocket.Conn) {
		var text string
		if websocket.Message.Receive(c, &text) == nil && text == "x=1" {
			s.posts.Add(1)
			_ = websocket.Message.Send(c, "done")
		}
	}))
	if by == "a frame" {
		beside := serve(onOtherAddress{m})
		t.Cleanup(beside.Close)
		other = beside.URL
	}
	server := serve(m)
	t.Cleanup(server.Close)
	s.url = server.URL
	_, s.host, _ = strings.Cut(server.URL, "://")
	return s
}

// onOtherAddress marks the handler of a server that is to listen on 127.0.0.2.
type onOtherAddress struct{ http.Handler }

// listen moves a server that has not started to 127.0.0.2 if its handler says so.
func listen(s *httptest.Server) *httptest.Server {
	if _, ok := s.Config.Handler.(onOtherAddress); ok {
		ln, err := net.Listen("tcp", "127.0.0.2:0")
		if err != nil {
			panic(err)
		}
		s.Listener.Close()
		s.Listener = ln
	}
	return s
}

const pressIt = `{"start_url":"URL/","target_hosts":["HOST"],"auth":{"kind":"none"},"steps":[{"id":"act","kind":"click","target":{"selector":"#act"}}],"commit_step_id":"act",
	"assertions":[{"kind":"element_text","selector":"#said","value":"done","match":"equals"}]}`

// raw answers with bytes, and then cuts the connection.
func raw(text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		if c, to, err := http.NewResponseController(w).Hijack(); err == nil {
			say(to, text)
			c.Close()
		}
	}
}

func say(to *bufio.ReadWriter, text string) {
	_, _ = to.WriteString(text)
	_ = to.Flush()
}

func h2(h http.Handler) *httptest.Server { return quietTLS(h, true) }

func https(h http.Handler) *httptest.Server { return quietTLS(h, false) }

func quietTLS(h http.Handler, h2 bool) *httptest.Server {
	s := listen(httptest.NewUnstartedServer(h))
	s.EnableHTTP2, s.Config.ErrorLog = h2, silent
	s.StartTLS()
	return s
}

// TestNothingIsSentTwice: whatever a site answers to the request of a commit, after which Chromium sends a
// request again by itself, it gets one.
func TestNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	nothingIsSentTwice(t, quickly(t), map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": https})
}

func nothingIsSentTwice(t *testing.T, in *Browser, sites map[string]func(http.Handler) *httptest.Server) {
	answer := func(status int, head string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			if name, value, ok := strings.Cut(head, ": "); ok {
				w.Header().Set(name, value)
			}
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(status)
			fmt.Fprint(w, "done")
		}
	}
	early := "HTTP/1.1 103 Early Hints\r\nLink: </" + strings.Repeat("x", 100) + ">; rel=preload; as=style\r\n\r\n"
	lost, landed := []skill.Event{skill.Lost}, []skill.Event{skill.Clicked}
	either := []skill.Event{skill.Lost, skill.Clicked}
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
		want   []skill.Event
		form   bool // by a form as well
	}{
		{"the request took too long", answer(408, ""), lost, true},
		{"it went to the wrong server", answer(421, ""), lost, true},
		{"it came too early", answer(425, ""), landed, false},
		{"the site is busy", answer(503, "Retry-After: 0"), landed, false},
		{"the page loads again", answer(200, "Refresh: 0"), landed, true},
		{"no answer and a cut", raw(""), lost, false},
		{"a hint and a cut", raw(early), lost, false},
		{"half a head and a cut", raw("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nX-Padding: " + strings.Repeat("x", 100)), lost, false},
		{"a head and a cut", raw("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\n"), either, true},
		{"half a body and a cut", raw("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ndo\r\n"), either, false},
	} {
		for over, serve := range sites {
			for _, by := range []string{"a form", "a script"} {
				if by == "a form" && !c.form {
					continue
				}
				t.Run(fmt.Sprintf("%s by %s over %s", c.name, by, over), func(t *testing.T) {
					t.Parallel()
					s := newShop(t, in, serve, by, c.answer)
					p := s.before(t)
					r := p.Commit(context.Background())
					p.Close()
					ok := false
					for _, e := range c.want {
						ok = ok || r.Event == e
					}
					if n := s.posts.Load(); n != 1 || !ok {
						t.Errorf("%d posts, %s", n, show(t, r))
					}
				})
			}
		}
	}
}

// A commit is answered if the site answers it, whatever became of what the page sent besides to hosts that the skill does not
// name. A request to such a host that was lost makes the outcome unknown, as any.
func TestWhatACommitSendsBesides(t *testing.T) {
	t.Parallel()
	cut := https(onOtherAddress{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { raw("")(w, r) })})
	t.Cleanup(cut.Close)
	for name, c := range map[string]struct {
		policy, to string
		want       skill.Event
	}{
		"the guard refuses the host":   {"", "https://10.0.0.1/count", skill.Clicked},
		"nothing listens there":        {"", "https://127.0.0.2:9/count", skill.Clicked},
		"the page's own policy":        {`<meta http-equiv="Content-Security-Policy" content="connect-src 'self'">`, "https://127.0.0.2:9/count", skill.Clicked},
		"it was cut before its answer": {"", cut.URL + "/count", skill.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serves(t, c.policy+`<p id=said></p><button id=act onclick="const no = () => {}; fetch('`+c.to+`', { method: 'POST', mode: 'no-cors', body: 'x=1' }).then(no, no).then(() => fetch('/act', { method: 'POST' })).then(() => { document.getElementById('said').textContent = 'done' })">Do it</button>`)
			p, r, err := quickly(t).Prepare(t.Context(), s.job(t, pressIt, `{}`))
			if err != nil || p == nil {
				t.Fatal(err, show(t, r))
			}
			defer p.Close()
			if r := p.Commit(t.Context()); r.Event != c.want {
				t.Fatal(show(t, r))
			}
			if c.want != skill.Clicked {
				return
			}
			if r := p.Verify(t.Context()); r.Event != skill.Verified {
				t.Error(show(t, r))
			}
		})
	}
}

// before opens the page of a shop.
func (s *shop) before(t *testing.T) Session {
	t.Helper()
	w := &world{url: s.url, host: s.host, shots: map[string][]byte{}}
	p, r, err := s.in.Prepare(context.Background(), w.job(t, pressIt, `{}`))
	if err != nil || p == nil {
		t.Fatal(err, show(t, r))
	}
	t.Cleanup(p.Close)
	return p
}

// TestEveryWayToCommit: what is sent by a press, by a WebSocket, or when the click has landed already is sent
// once as well, and arrives.
func TestEveryWayToCommit(t *testing.T) {
	t.Parallel()
	everyWayToCommit(t, quickly(t), map[string]func(http.Handler) *httptest.Server{"http": func(h http.Handler) *httptest.Server {
		s := listen(httptest.NewUnstartedServer(h))
		s.Start()
		return s
	}, "https": https, "h2": h2})
}

func everyWayToCommit(t *testing.T, in *Browser, sites map[string]func(http.Handler) *httptest.Server) {
	fine := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }
	tooLate := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestTimeout) }
	for over, serve := range sites {
		for _, c := range []struct {
			by     string
			answer func(http.ResponseWriter, *http.Request)
			want   skill.Event // of the checks
		}{
			{"a press", fine, skill.Verified},
			{"a socket", fine, skill.Verified},
			{"a timer", fine, skill.Verified},
			{"a timer", raw(""), skill.ChecksFailed}, // or it is noticed in the commit
			{"a worker", fine, skill.Verified},
			{"a worker", tooLate, skill.ChecksFailed},
			{"a frame", fine, skill.Verified},
			{"a frame", tooLate, skill.ChecksFailed},
			{"a beacon", fine, skill.Verified},
			{"a beacon", tooLate, skill.Verified}, // the page does not hear of it
		} {
			t.Run(fmt.Sprintf("%s over %s, %s", c.by, over, c.want), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, in, serve, c.by, c.answer)
				p := s.before(t)
				r := p.Commit(context.Background())
				if r.Event == skill.Clicked {
					if c.want != skill.Verified { // it is not waited for what does not come
						testkit.Eventually(t, "the site has the request", func() bool { return s.posts.Load() > 0 })
						p.(*session).step = time.Second
					}
					r = p.Verify(context.Background())
				}
				if c.by == "a beacon" {
					testkit.Eventually(t, "the site has the request", func() bool { return s.posts.Load() > 0 })
				}
				p.Close()
				if n := s.posts.Load(); n != 1 || r.Event != c.want && !(r.Event == skill.Lost && (c.want == skill.ChecksFailed || c.by == "a beacon")) {
					t.Errorf("%d posts, %s", n, show(t, r))
				}
			})
		}
	}
}

// TestTheEndOfASessionRepeatsNothing: a session that ends while a request waits cuts its connection only when
// its page is gone.
func TestTheEndOfASessionRepeatsNothing(t *testing.T) {
	t.Parallel()
	for over, serve := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": https} {
		for _, read := range []bool{true, false} {
			t.Run(fmt.Sprint(over, " ", read), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, quickly(t), serve, "a script", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
				p := s.before(t).(*session)
				if !read {
					p.e = &engine{home: p.e.home, browser: p.e.browser, dead: p.e.dead, gone: p.e.gone}
				}
				done := make(chan *skill.Report, 1)
				go func() { done <- p.Commit(context.Background()) }()
				testkit.Eventually(t, "the site has the request", func() bool { return s.posts.Load() > 0 })
				p.Close()
				if r := <-done; r.Event == skill.Fails { // the page may rest before it posts
					t.Error(show(t, r))
				}
				if n := s.posts.Load(); n != 1 {
					t.Errorf("%d posts", n)
				}
			})
		}
	}
}

// TestOnlyTheOwnKeyIsAccepted: a browser takes the certificates of its own proxies for any site, and no others,
// and a site with a bad certificate is not read.
func TestOnlyTheOwnKeyIsAccepted(t *testing.T) {
	t.Parallel()
	s := newShop(t, quickly(t), https, "a script", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") })
	w := &world{url: s.url, host: s.host, shots: map[string][]byte{}}
	for _, act := range []func(*Browser) (*skill.Report, error){
		func(b *Browser) (*skill.Report, error) { // before the commit
			return b.Read(context.Background(), w.job(t, page("/", false), `{}`))
		},
		func(b *Browser) (*skill.Report, error) { // after it
			p, err := b.open(context.Background(), w.job(t, page("/", false), `{}`))
			if err != nil {
				return nil, err
			}
			defer p.Close()
			p.proxy.fresh(context.Background(), p.e.identity, nil)
			return p.readAll(context.Background())
		},
	} {
		r, err := act(shared.get(t))
		if err != nil || r.Event != skill.Fails || s.posts.Load() != 0 {
			t.Errorf("%v %s", err, show(t, r))
		}
	}
	one, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"shop.example", "127.0.0.1"} {
		c, err := one.certificate(host)
		if err != nil || c.PrivateKey != one.key {
			t.Error(host, err)
		}
	}
}
