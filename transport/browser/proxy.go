package browser

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentsvc/transport/egress"
)

// Limits of one session's traffic.
const (
	maxTunnels = 96        // requests and tunnels at a time
	maxTraffic = 512 << 20 // bytes that a session receives
	maxHeader  = 256 << 10 // bytes of a head
	maxHosts   = 256       // that a session remembers
	dialWait   = 5 * time.Second
	headerWait = 60 * time.Second
)

// proxy is the forward proxy of one session. All that its pages load comes through it.
type proxy struct {
	guard    *egress.Guard
	ln       net.Listener
	server   *http.Server
	tr       *http.Transport
	password string // "": the listener is on loopback, and no password is asked
	places   chan struct{}
	ctx      context.Context
	stop     context.CancelFunc

	anyCertificate bool           // for tests
	roots          *x509.CertPool // for tests; nil: the machine's

	mu       sync.Mutex // guards what is below
	tunnels  map[*tunnel]struct{}
	received int64
	hosts    map[string]bool             // with their ports: to which tunnels were asked for
	made     map[string]*tls.Certificate // of the identity, by host
	identity *identity                   // not nil: Chromium accepts it, and https is read
	judges   bool                        // Chromium judges no certificate any more: to a site that cannot be read, nothing is sent
	begun    bool                        // the commit has begun: from then on nothing is passed on that could be sent twice
	watch    bool                        // it is under way
	within   func(url string) bool       // since the commit has begun: whether a page may be led to an address; nil: anywhere
	frozen   bool                        // nothing else is sent: a request of the commit was lost, or the session ends
	cut      chan struct{}               // closed when a request of the commit was lost
	refused  string                      // the last host that the guard refused
}

// ports are the listeners of all proxies of this process, which no proxy reaches.
var ports sync.Map

// newProxy starts a proxy on a loopback address, or on the address listen, then with a password.
func newProxy(guard *egress.Guard, listen string) (*proxy, error) {
	at, password := "127.0.0.1:0", ""
	if listen != "" {
		at = net.JoinHostPort(listen, "0")
		var b [24]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, err
		}
		password = hex.EncodeToString(b[:])
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	p := &proxy{guard: guard, ln: ln, password: password, places: make(chan struct{}, maxTunnels), tunnels: map[*tunnel]struct{}{}, hosts: map[string]bool{}, made: map[string]*tls.Certificate{}, cut: make(chan struct{})}
	p.ctx, p.stop = context.WithCancel(context.Background())
	// One connection for each request: net/http never sends one again on a fresh connection.
	p.tr = &http.Transport{Proxy: nil, DialContext: p.dial, DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: headerWait, MaxResponseHeaderBytes: maxHeader}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 30 * time.Second, MaxHeaderBytes: maxHeader, ErrorLog: silent, BaseContext: func(net.Listener) context.Context { return p.ctx }}
	ports.Store(ln.Addr().(*net.TCPAddr).Port, true)
	go func() { _ = p.server.Serve(ln) }()
	return p, nil
}

func (p *proxy) url() string { return "http://" + p.ln.Addr().String() }

// close ends everything that the session has open.
func (p *proxy) close() {
	p.stop()
	_ = p.server.Close()
	ports.Delete(p.ln.Addr().(*net.TCPAddr).Port)
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := range p.tunnels {
		t.end()
	}
}

var errOwnProxy = errors.New("a proxy of this service")

func (p *proxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	if host, port, err := net.SplitHostPort(address); err == nil {
		if n, err := strconv.Atoi(port); err == nil {
			_, own := ports.Load(n)
			if a, err := netip.ParseAddr(host); own && (err != nil || !egress.Public(a)) {
				return nil, errOwnProxy
			}
		}
	}
	c, err := p.guard.Dial(ctx, network, address)
	if errors.Is(err, egress.ErrRefused) {
		denied.Inc()
		p.mu.Lock()
		p.refused = address
		p.mu.Unlock()
	}
	return c, err
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.password != "" {
		want := "Basic " + base64.StdEncoding.EncodeToString([]byte("svc:"+p.password))
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Proxy-Authorization")), []byte(want)) != 1 {
			w.Header().Set("Proxy-Authenticate", `Basic realm="svc"`)
			http.Error(w, "", http.StatusProxyAuthRequired)
			return
		}
	}
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	case <-r.Context().Done():
		return
	}
	switch {
	case r.Method != http.MethodConnect && (r.URL.Scheme != "http" || r.URL.Host == ""):
		http.Error(w, "", http.StatusBadRequest)
	case r.Method != http.MethodConnect:
		p.pass(w, r, p.tr)
	case p.isFrozen():
		http.Error(w, "", http.StatusBadGateway)
	default:
		p.tunnel(w, r)
	}
}

// hop are the headers that concern one connection.
var hop = []string{"Connection", "Proxy-Connection", "Proxy-Authorization", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// again are the statuses after which Chromium sends a request again by itself: it came too late on a
// kept connection, or went to the wrong server. Some sites have acted all the same.
var again = []int{http.StatusRequestTimeout, http.StatusMisdirectedRequest}

// pass sends a request once and returns its answer. It answers by itself whatever could make
// Chromium send it again.
func (p *proxy) pass(w http.ResponseWriter, r *http.Request, over http.RoundTripper) {
	if p.isFrozen() {
		http.Error(w, "", http.StatusBadGateway)
		return
	}
	if p.leads(r) {
		http.Error(w, "", http.StatusForbidden)
		return
	}
	out := r.Clone(r.Context())
	out.RequestURI = ""
	for _, name := range hop {
		out.Header.Del(name)
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", "websocket")
	}
	if r.ContentLength == 0 {
		out.Body = nil
	}
	resp, err := over.RoundTrip(out)
	if err != nil {
		if decides(r) && !errors.Is(err, egress.ErrRefused) && !errors.Is(err, errOwnProxy) && !errors.As(err, new(*net.DNSError)) && !isDial(err) { // it was sent, perhaps
			p.freeze()
		}
		http.Error(w, "", statusOf(err))
		return
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		p.join(w, resp)
		return
	case slices.Contains(again, resp.StatusCode) && p.hasBegun():
		if decides(r) {
			p.freeze()
		}
		http.Error(w, "", http.StatusBadGateway)
		return
	}
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	for _, name := range hop {
		w.Header().Del(name)
	}
	w.WriteHeader(resp.StatusCode)
	if p.hasBegun() { // the head goes out before the body is read: what is cut then is not sent again
		_ = http.NewResponseController(w).Flush()
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if !p.receive(n) {
				panic(http.ErrAbortHandler)
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // cut, as the answer was
		}
	}
}

// leads reports whether a request leads a page out of the session's scope: by a redirect it may carry what the
// commit submitted. Chromium names what a request is for, except to sites over http that are on no loopback address.
func (p *proxy) leads(r *http.Request) bool {
	p.mu.Lock()
	within := p.within
	p.mu.Unlock()
	dest := r.Header.Get("Sec-Fetch-Dest")
	page := dest == "document" || dest == "" && r.Header.Get("Upgrade-Insecure-Requests") == "1"
	return within != nil && page && !within(r.URL.String())
}

// decides reports whether a request may be what the commit sends.
func decides(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions || strings.Contains(r.Header.Get("Accept"), "text/html")
}

func statusOf(err error) int {
	if errors.Is(err, egress.ErrRefused) || errors.Is(err, errOwnProxy) {
		return http.StatusForbidden
	}
	return http.StatusBadGateway
}

func isDial(err error) bool {
	op := new(net.OpError)
	return errors.As(err, &op) && op.Op == "dial"
}

// refusedHost reports whether the guard refused the host of an address.
func (p *proxy) refusedHost(url string) bool {
	host, _ := hostOf(url)
	p.mu.Lock()
	defer p.mu.Unlock()
	name, _, _ := net.SplitHostPort(p.refused)
	return p.refused != "" && (host == p.refused || host == name)
}

// receive counts bytes; false means that the session has had enough.
func (p *proxy) receive(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.received += int64(n)
	return p.received <= maxTraffic
}

func (p *proxy) isFrozen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.frozen
}

func (p *proxy) hasBegun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// freeze notes that a request was lost before it was answered. It reports whether Chromium may not
// hear of that: since the commit has begun. While the commit is under way, nothing else of the
// session is sent from then on.
func (p *proxy) freeze() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watch && !p.frozen {
		p.frozen = true
		close(p.cut)
	}
	return p.begun
}

// seal is the beginning of the end: what is open stays so until close, and nothing else is sent.
// The context ends in between, so that it repeats no request whose connection close cuts.
func (p *proxy) seal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun, p.watch, p.frozen = true, false, true
}

// tunnel is one CONNECT: bytes that we do not understand.
type tunnel struct {
	client net.Conn
	left   chan struct{} // closed when Chromium has closed its side

	mu     sync.Mutex // guards what is below
	site   net.Conn
	ended  bool
	asked  bool // the last bytes came from Chromium: a request that is not answered, perhaps
	ending bool // we close it ourselves
}

func (t *tunnel) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.client.Close()
	t.site.Close()
}

// use replaces the connection to the site.
func (t *tunnel) use(site net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.site.Close()
	if t.site = site; t.ended {
		site.Close()
	}
}

func (t *tunnel) mark(asked bool) {
	t.mu.Lock()
	t.asked = asked
	t.mu.Unlock()
}

// unanswered reports whether Chromium waits for an answer: it has sent what may be a request, and neither it nor
// we have closed the connection.
func (t *tunnel) unanswered() bool {
	select {
	case <-t.left:
		return false
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked && !t.ending
}

// records reads the framing of what one side sends in a tunnel, to tell requests and answers from what
// TLS and HTTP/2 send besides: handshakes, alerts, acknowledgements, windows.
type records struct {
	begun bool
	plain bool // it is not TLS
	head  []byte
	skip  int  // bytes of the current record that are to come
	data  int  // bytes of records of application data
	ended bool // a record was an alert, with which TLS ends
}

// mostHandshake is the length of what Chromium sends as application data before a request: the end of
// the handshake of TLS 1.3, and an alert if it refuses the certificate. A first request is longer.
const mostHandshake = 100

// request reports whether the next bytes may belong to a request. Until one was sent, a connection that is cut
// has lost none.
func (r *records) request(b []byte) bool {
	r.answer(b)
	return r.plain || r.data > mostHandshake
}

// leastAnswer is the length of a TLS record from which on it may be the head of an answer. A head
// with a date is longer; a close_notify has 19 bytes, frames of HTTP/2 without headers have 26 to 34.
const leastAnswer = 64

// lengthOfAlert is the length of the record of an alert in TLS 1.3: two bytes, the type and the tag. No other
// message of HTTP or TLS is as short.
const lengthOfAlert = 2 + 1 + 16

// answer reports whether the next bytes hold a record that may be an answer.
func (r *records) answer(b []byte) bool {
	if !r.begun && len(b) > 0 {
		r.begun, r.plain = true, b[0] != 22 // a handshake comes first
	}
	if r.plain {
		return true
	}
	found := false
	for len(b) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(b))
			r.skip, b = r.skip-n, b[n:]
			continue
		}
		n := min(5-len(r.head), len(b))
		r.head, b = append(r.head, b[:n]...), b[n:]
		if len(r.head) == 5 {
			r.skip = int(r.head[3])<<8 | int(r.head[4])
			switch r.head[0] {
			case 21: // an alert of TLS 1.2
				r.ended = true
			case 23: // application data; TLS 1.3 sends alerts as such
				r.data += r.skip
				r.ended = r.ended || r.skip == lengthOfAlert
				found = found || r.skip >= leastAnswer
			}
			r.head = r.head[:0]
		}
	}
	return found
}

func (p *proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	site, err := p.dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, "", statusOf(err))
		return
	}
	client, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		site.Close()
		return
	}
	t := &tunnel{client: client, site: site, left: make(chan struct{})}
	p.mu.Lock()
	closed := p.ctx.Err() != nil
	p.tunnels[t] = struct{}{}
	if len(p.hosts) < maxHosts {
		p.hosts[r.Host] = true
	}
	p.mu.Unlock()
	defer func() {
		t.end()
		p.mu.Lock()
		delete(p.tunnels, t)
		p.mu.Unlock()
	}()
	if closed {
		return
	}
	if _, err := client.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")); err != nil {
		return
	}
	if p.read(t, rw.Reader, r.Host) {
		return
	}
	site = t.site // only read replaces it
	var up sync.WaitGroup
	up.Go(func() {
		defer close(t.left)
		buf := make([]byte, 32<<10)
		var records records
		for {
			n, err := rw.Read(buf) // what the server has read already comes first
			if n > 0 {
				if records.request(buf[:n]) {
					t.mark(true)
				}
				if _, err := site.Write(buf[:n]); err != nil {
					_, _ = io.Copy(io.Discard, rw) // the site has left, Chromium has not
					return
				}
			}
			if err != nil {
				if c, ok := site.(interface{ CloseWrite() error }); ok {
					_ = c.CloseWrite()
				}
				return
			}
		}
	})
	buf := make([]byte, 32<<10)
	var records records
	for {
		n, err := site.Read(buf)
		if n > 0 {
			if records.answer(buf[:n]) {
				t.mark(false)
			}
			// An alert tells Chromium of the cut as the end of the connection does.
			if records.ended && t.unanswered() && p.freeze() {
				<-p.ctx.Done()
				break
			}
			if !p.receive(n) {
				break
			}
			if _, err := client.Write(buf[:n]); err != nil {
				break
			}
		}
		if err != nil {
			if t.unanswered() && p.freeze() {
				<-p.ctx.Done() // no answer, and no end of which Chromium could make a second request
			}
			break
		}
	}
	t.end()
	up.Wait()
}

// fresh closes the tunnels that are open and waits, for a second at most, until Chromium has
// closed them too, so that it sends the next request on a connection of its own. From then on a
// lost request freezes the session. as is what Chromium accepts as any site; nil: nothing. accept, if
// set, makes Chromium accept any certificate. fresh calls it once no connection has an unchecked
// certificate. From then on only the proxy checks certificates.
func (p *proxy) fresh(ctx context.Context, as *identity, accept func() error) {
	p.mu.Lock()
	p.begun, p.watch, p.identity, p.judges = true, true, as, accept != nil
	p.mu.Unlock()
	p.endTunnels(ctx)
	if accept == nil || accept() == nil {
		return
	}
	p.mu.Lock()
	p.identity, p.judges = nil, false
	p.mu.Unlock()
}

// endTunnels closes the tunnels that are open.
func (p *proxy) endTunnels(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	p.mu.Lock()
	old := make([]*tunnel, 0, len(p.tunnels))
	for t := range p.tunnels {
		old = append(old, t)
	}
	p.mu.Unlock()
	for _, t := range old {
		t.mu.Lock()
		t.ending = true
		t.mu.Unlock()
		if c, ok := t.client.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite()
		}
	}
	for _, t := range old {
		select {
		case <-t.left:
		case <-ctx.Done():
		}
		t.end()
	}
}

// answered ends the commit: a request that is lost from then on is its own loss.
func (p *proxy) answered() {
	p.mu.Lock()
	p.watch = false
	p.mu.Unlock()
}
