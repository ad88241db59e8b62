package egress

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names is a resolver without a network.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	list, ok := n[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	addrs := make([]netip.Addr, len(list))
	for i, s := range list {
		addrs[i] = netip.MustParseAddr(s)
	}
	return addrs, nil
}

var errNoNetwork = errors.New("tests dial loopback only")

// record keeps what the guard said at dial time and never lets a public
// address be dialled.
type record struct {
	mu   sync.Mutex
	seen []string
}

func (v *record) observe(to netip.AddrPort, verdict error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = append(v.seen, fmt.Sprintf("%s %v", to, verdict == nil))
	if !to.Addr().Unmap().IsLoopback() {
		return errNoNetwork
	}
	return nil
}

func (v *record) take() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := strings.Join(v.seen, ", ")
	v.seen = nil
	return s
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func TestPublic(t *testing.T) {
	for addr, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "93.184.216.34": true, "172.15.255.255": true, "172.32.0.0": true, "100.63.255.255": true, "100.128.0.0": true, "223.255.255.255": true, "198.17.255.255": true, "198.20.0.0": true,
		"0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "100.64.0.1": false, "100.100.100.200": false, "127.0.0.1": false, "127.255.255.254": false,
		"168.63.129.16": false, "169.254.169.254": false, "172.16.0.1": false, "172.31.255.255": false, "192.0.0.1": false, "192.0.0.192": false, "192.0.2.1": false,
		"192.31.196.1": false, "192.52.193.1": false, "192.88.99.1": false, "192.168.1.1": false, "192.175.48.1": false, "198.18.0.1": false, "198.19.255.255": false,
		"198.51.100.1": false, "203.0.113.1": false, "224.0.0.1": false, "239.255.255.255": false, "240.0.0.1": false, "255.255.255.255": false,
		"2606:4700::1111": true, "2a00:1450:4001::1": true, "2001:4860:4860::8888": true, "2003::1": true,
		"::": false, "::1": false, "::127.0.0.1": false, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:8.8.8.8": true,
		"64:ff9b::7f00:1": false, "64:ff9b::808:808": false, "64:ff9b:1::1": false, "100::1": false, "100:0:0:1::1": false, "2001::1": false, "2001:10::1": false, "2001:20::1": false,
		"2001:db8::1": false, "2002:7f00:1::": false, "2002:808:808::": false, "2620:4f:8000::1": false, "3fff::1": false, "4000::1": false, "5f00::1": false,
		"::ffff:0:7f00:1": false, "64:ff9b:1:ffff::a00:1": false, "2001:0:4136:e378:8000:63bf:80ff:fffe": false, "2002:a9fe:a9fe::1": false, "fe80::5efe:7f00:1": false, "::7f00:1": false,
		"fc00::1": false, "fd00:ec2::254": false, "fe80::1": false, "fe80::1%eth0": false, "2606:4700::1111%eth0": false, "fec0::1": false, "ff02::1": false,
	} {
		if got := Public(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Public(%s) = %v", addr, got)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("the zero address is public")
	}
}

// TestRefusedWhenSaved is open-parts.md, Questions settled, "Refused when
// saved", one row a case.
func TestRefusedWhenSaved(t *testing.T) {
	dns := names{
		"public.example":    {"93.184.216.34", "2606:4700::1111"},
		"private.example":   {"10.1.2.3"},
		"mixed.example":     {"93.184.216.34", "169.254.169.254"},
		"mapped.example":    {"::ffff:192.168.0.1"},
		"localhost":         {"::1", "127.0.0.1"},
		"tools":             {"127.0.0.9"},
		"api.internal":      {"93.184.216.34"},
		"tools.internal":    {"127.0.0.9"},
		"own.example":       {"127.0.0.1"},
		"odd.example":       {"127.0.0.1", "10.1.2.3"},
		"xn--bcher-kva.tld": {"93.184.216.34"},
	}
	own := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("[::]:9090")}
	closed := New(Config{Resolver: dns, Own: own})
	open := New(Config{Resolver: dns, Own: own, Allow: loopback})
	https, any := Rules{HTTPSOnly: true}, Rules{}
	for _, c := range []struct {
		name  string
		g     *Guard
		url   string
		rules Rules
		want  string // "" passes
	}{
		{"https and public", closed, "https://public.example/hook?x=1", https, ""},
		{"a public literal", closed, "https://93.184.216.34/", https, ""},
		{"a public v6 literal", closed, "https://[2606:4700::1111]:8443/", https, ""},
		{"a trailing dot and upper case", closed, "https://PUBLIC.example./", https, ""},
		{"an international name", closed, "https://xn--bcher-kva.tld/", https, ""},
		{"plain http where it may be", closed, "http://public.example/mcp", any, ""},
		{"a name that does not resolve may be saved", closed, "https://later.example/", https, ""},

		{"wrong scheme", closed, "ftp://public.example/", any, "scheme must be https or http"},
		{"wrong scheme, https only", closed, "http://public.example/", https, "scheme must be https"},
		{"wrong scheme, unresolved", closed, "http://later.example/", https, "scheme must be https"},
		{"wrong scheme, literal", closed, "http://93.184.216.34/", https, "scheme must be https"},
		{"no scheme", closed, "public.example/hook", any, "scheme"},
		{"a file", closed, "file:///etc/passwd", any, "scheme"},
		{"opaque", closed, "https:public.example", https, "no host"},
		{"no host", closed, "https:///x", https, "no host"},
		{"not a URL", closed, "https://[::1", https, "not a URL"},
		{"control character", closed, "https://public.example/\n", https, "not a URL"},
		{"empty", closed, "", any, "scheme"},
		{"user info", closed, "https://user@public.example/", https, "user info"},
		{"user and password", closed, "https://a:b@public.example/", https, "user info"},
		{"port 0", closed, "https://public.example:0/", https, "no such port"},
		{"port too large", closed, "https://public.example:70000/", https, "no such port"},

		{"a literal that is not public: loopback", closed, "https://127.0.0.1/", https, "not a public address"},
		{"a literal that is not public: v6 loopback", closed, "https://[::1]/", https, "not a public address"},
		{"a literal that is not public: private", closed, "https://192.168.0.1/", https, "not a public address"},
		{"a literal that is not public: metadata", closed, "http://169.254.169.254/latest", any, "not a public address"},
		{"a literal that is not public: mapped", closed, "https://[::ffff:127.0.0.1]/", https, "not a public address"},
		{"a literal that is not public: NAT64", closed, "https://[64:ff9b::7f00:1]/", https, "not a public address"},
		{"a literal that is not public: 6to4", closed, "https://[2002:7f00:1::]/", https, "not a public address"},
		{"a literal with a zone", closed, "https://[fe80::1%25eth0]/", https, "zone"},
		{"a literal in disguise: short", closed, "https://127.1/", https, "not a host name"},
		{"a literal in disguise: hex", closed, "https://0x7f.0.0.0x1/", https, "not a host name"},
		{"a literal in disguise: octal", closed, "https://0177.0.0.01/", https, "not a host name"},
		{"a literal in disguise: number", closed, "https://2130706433/", https, "not a host name"},
		{"a literal in disguise: full width", closed, "https://127。0。0。1/", https, "not a host name"},

		{"one label", closed, "https://intranet/", https, "not a public name"},
		{"one label: localhost", closed, "https://localhost/", https, "not a public name"},
		{"one label with a dot", closed, "https://localhost./", https, "not a public name"},
		{"ends in .internal", closed, "https://api.internal/", https, "not a public name"},
		{"ends in .local", closed, "https://printer.local/", https, "not a public name"},
		{"ends in .localhost", closed, "https://a.LOCALHOST/", https, "not a public name"},
		{"ends in .home.arpa", closed, "https://nas.home.arpa/", https, "not a public name"},
		{"resolves to a refused address", closed, "https://private.example/", https, "not public"},
		{"resolves to a refused address among others", closed, "https://mixed.example/", https, "not public"},
		{"resolves to a mapped private address", closed, "https://mapped.example/", https, "not public"},
		{"empty label", closed, "https://a..example/", https, "not a host name"},
		{"long label", closed, "https://" + strings.Repeat("a", 64) + ".example/", https, "not a host name"},

		{"SVC_OUTBOUND_ALLOW lifts a literal, plain http too", open, "http://127.0.0.1:9000/mcp", https, ""},
		{"SVC_OUTBOUND_ALLOW lifts a mapped literal", open, "http://[::ffff:127.0.0.1]:9000/mcp", https, ""},
		{"SVC_OUTBOUND_ALLOW lifts localhost", open, "http://localhost:9000/mcp", https, ""},
		{"SVC_OUTBOUND_ALLOW lifts a name of one label", open, "http://tools:9000/", https, ""},
		{"SVC_OUTBOUND_ALLOW lifts a name in .internal", open, "http://tools.internal:9000/", https, ""},
		{"SVC_OUTBOUND_ALLOW lifts only what it names", open, "https://[::1]/", https, "not a public address"},
		{"SVC_OUTBOUND_ALLOW lifts only what it names: name", open, "https://private.example/", https, "not public"},
		{"SVC_OUTBOUND_ALLOW lifts only what it names: mixed", open, "https://odd.example/", https, "not public"},
		{"SVC_OUTBOUND_ALLOW does not make public hosts plain", open, "http://public.example/", https, "scheme must be https"},
		{"user info stays refused", open, "http://u@127.0.0.1:9000/", https, "user info"},
		{"our own listener stays refused", open, "http://127.0.0.1:8080/", https, "this service itself"},
		{"our own listener on any address stays refused", open, "http://127.0.0.5:9090/", https, "this service itself"},
		{"our own listener by name", open, "http://own.example:8080/", https, "not public"},
		{"our own listener by localhost's other address", open, "http://localhost:9090/", https, "not public"},
		{"a neighbour of our own listener", open, "http://127.0.0.1:8081/", https, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.g.CheckURL(context.Background(), c.url, c.rules)
			switch {
			case c.want == "" && err != nil:
				t.Fatalf("%s: %v", c.url, err)
			case c.want != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("%s: got %v, want %q", c.url, err, c.want)
			}
		})
	}
}

// TestJudgedAtEachUse: the dialler checks the resolved address, whatever the check at saving
// said.
func TestJudgedAtEachUse(t *testing.T) {
	dns := names{
		"public.example":  {"93.184.216.34"},
		"rebound.example": {"127.0.0.1"},
		"both.example":    {"10.0.0.1", "93.184.216.34"},
	}
	for _, c := range []struct {
		name, url string
		tls       bool
		seen      string
		refused   bool
	}{
		{"public is let through", "https://public.example/", true, "93.184.216.34:443 true", false},
		{"plain http to a public host", "http://public.example/", true, "93.184.216.34:80 false", true},
		{"plain http to a public host where it may be", "http://public.example/", false, "93.184.216.34:80 true", false},
		{"a name now resolves to loopback", "https://rebound.example/", true, "127.0.0.1:443 false", true},
		{"the next address is tried", "https://both.example/", true, "10.0.0.1:443 false, 93.184.216.34:443 true", true},
		{"literal metadata", "http://169.254.169.254/latest", false, "169.254.169.254:80 false", true},
		{"mapped literal", "http://[::ffff:169.254.169.254]/", false, "169.254.169.254:80 false", true},
		{"NAT64 literal", "https://[64:ff9b::a9fe:a9fe]/", true, "[64:ff9b::a9fe:a9fe]:443 false", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v record
			g := New(Config{Resolver: dns, Observe: v.observe})
			_, err := g.Client(Options{RequireTLS: c.tls}).Get(c.url)
			if err == nil {
				t.Fatal("a test reached the network")
			}
			if errors.Is(err, ErrRefused) != c.refused {
				t.Fatalf("got %v", err)
			}
			if got := v.take(); got != c.seen {
				t.Fatalf("saw %q, want %q", got, c.seen)
			}
		})
	}
}

func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func client(t *testing.T, c Config, o Options) *http.Client {
	t.Helper()
	if c.Observe == nil {
		c.Observe = new(record).observe // no mistake of the guard's reaches a network
	}
	hc := New(c).Client(o)
	t.Cleanup(hc.CloseIdleConnections)
	return hc
}

func TestAllowedRangeIsReachedPlain(t *testing.T) {
	s := server(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	hc := client(t, Config{Allow: loopback, Resolver: names{"tools.internal": {"127.0.0.1"}}}, Options{RequireTLS: true})
	for _, u := range []string{s.URL, strings.Replace(s.URL, "127.0.0.1", "tools.internal", 1)} {
		resp, err := hc.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(b) != "hello" {
			t.Fatalf("got %q", b)
		}
	}
}

func TestOurOwnListenerIsRefused(t *testing.T) {
	s := server(t, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
	own := netip.MustParseAddrPort(s.Listener.Addr().String())
	for _, o := range []netip.AddrPort{own, netip.AddrPortFrom(netip.IPv4Unspecified(), own.Port()), netip.AddrPortFrom(netip.IPv6Unspecified(), own.Port())} {
		if _, err := client(t, Config{Allow: loopback, Own: []netip.AddrPort{o}}, Options{}).Get(s.URL); !errors.Is(err, ErrRefused) {
			t.Fatalf("%v: got %v", o, err)
		}
	}
}

// TestOurOwnListenersInEveryForm: an operator who allows every address still does not open
// our own listeners, in any notation.
func TestOurOwnListenersInEveryForm(t *testing.T) {
	everything := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	g := New(Config{Allow: everything, Own: []netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("[::]:9090"), netip.MustParseAddrPort("0.0.0.0:9091"), netip.MustParseAddrPort("[::ffff:10.0.0.5]:7946"),
	}})
	mine := ""
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok && !p.IP.IsLoopback() && p.IP.To4() != nil {
			mine = p.IP.String()
		}
	}
	rows := map[string]bool{ // whether it is ours
		"127.0.0.1:8080": true, "[::ffff:127.0.0.1]:8080": true, "0.0.0.0:8080": true, "[::]:8080": true, "127.0.0.1:8081": false, "127.0.0.2:8080": false, "93.184.216.34:8080": false,
		"127.0.0.1:9090": true, "127.9.9.9:9090": true, "[::1]:9090": true, "[::ffff:127.0.0.1]:9090": true, "0.0.0.0:9090": true, "[::ffff:0.0.0.0]:9090": true, "93.184.216.34:9090": false,
		"127.0.0.1:9091": true, "[::1]:9091": true, "10.0.0.5:7946": true, "[::ffff:10.0.0.5]:7946": true, "10.0.0.6:7946": false,
	}
	if mine != "" {
		rows[mine+":9090"], rows[mine+":9092"] = true, false
	}
	for addr, ours := range rows {
		if err := g.CheckAddr(netip.MustParseAddrPort(addr)); errors.Is(err, ErrRefused) != ours {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func TestAnswersAreCapped(t *testing.T) {
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fits":
			w.Write(bytes.Repeat([]byte("x"), 1000))
		case "/declared":
			w.Write(bytes.Repeat([]byte("x"), 1001))
		case "/chunked":
			w.(http.Flusher).Flush()
			w.Write(bytes.Repeat([]byte("x"), 1001))
		case "/zipped":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			z.Write(bytes.Repeat([]byte("x"), 1<<20))
			z.Close()
		}
	})
	hc := client(t, Config{Allow: loopback}, Options{MaxBody: 1000})
	for path, want := range map[string]error{"/fits": nil, "/declared": ErrTooLarge, "/chunked": ErrTooLarge, "/zipped": ErrTooLarge} {
		t.Run(path, func(t *testing.T) {
			resp, err := hc.Get(s.URL + path)
			var b []byte
			if err == nil {
				b, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if !errors.Is(err, want) || len(b) > 1000 {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
		})
	}
}

func TestRedirectsAndHeaders(t *testing.T) {
	type got struct {
		path string
		h    http.Header
	}
	var mu sync.Mutex
	var seen []got
	note := func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, got{r.URL.Path, r.Header.Clone()})
	}
	other := server(t, func(_ http.ResponseWriter, r *http.Request) { note(r) })
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		note(r)
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL+"/there", http.StatusTemporaryRedirect)
		case "/metadata":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		}
	})
	do := func(o Options, path string) (*http.Response, error) {
		seen = nil
		r, _ := http.NewRequest(http.MethodGet, s.URL+path, nil)
		r.Header.Set("X-Api-Key", "secret")
		r.Header.Set("Idempotency-Key", "k")
		r.Header["X-Idempotency-Key"] = []string{"k"}
		resp, err := client(t, Config{Allow: loopback}, o).Do(r)
		if err == nil {
			resp.Body.Close()
		}
		if r.Header.Get("Idempotency-Key") == "" {
			t.Error("the caller's request was changed")
		}
		return resp, err
	}
	t.Run("no redirect is followed", func(t *testing.T) {
		resp, err := do(Options{}, "/away")
		if err != nil || resp.StatusCode != http.StatusTemporaryRedirect || len(seen) != 1 {
			t.Fatalf("%v %v %d", resp, err, len(seen))
		}
	})
	t.Run("an Idempotency-Key is never sent", func(t *testing.T) {
		if _, err := do(Options{}, "/"); err != nil || seen[0].h.Get("Idempotency-Key")+seen[0].h.Get("X-Idempotency-Key") != "" || seen[0].h.Get("X-Api-Key") != "secret" {
			t.Fatalf("%v %v", err, seen)
		}
	})
	t.Run("followed where asked, without secrets", func(t *testing.T) {
		if _, err := do(Options{Redirects: 5}, "/away"); err != nil || len(seen) != 2 || seen[1].path != "/there" || seen[1].h.Get("X-Api-Key") != "" {
			t.Fatalf("%v %v", err, seen)
		}
	})
	t.Run("each hop is judged", func(t *testing.T) {
		if _, err := do(Options{Redirects: 5}, "/metadata"); !errors.Is(err, ErrRefused) {
			t.Fatal(err)
		}
	})
	t.Run("at most five", func(t *testing.T) {
		if _, err := do(Options{Redirects: 5}, "/loop"); !errors.Is(err, ErrRefused) || len(seen) != 6 {
			t.Fatalf("%v after %d", err, len(seen))
		}
	})
}

func TestNoProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	var v record
	_, err := New(Config{Observe: v.observe, Resolver: names{"public.example": {"93.184.216.34"}}}).Client(Options{}).Get("http://public.example/")
	if got := v.take(); got != "93.184.216.34:80 true" {
		t.Fatalf("saw %q, %v", got, err)
	}
}

func TestTimeOuts(t *testing.T) {
	release := make(chan struct{})
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	t.Run("header", func(t *testing.T) {
		_, err := client(t, Config{Allow: loopback}, Options{HeaderTimeout: 20 * time.Millisecond}).Get(s.URL + "/never")
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Fatal(err)
		}
	})
	t.Run("silence", func(t *testing.T) {
		resp, err := client(t, Config{Allow: loopback}, Options{IdleTimeout: 300 * time.Millisecond}).Get(s.URL + "/silent")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if string(b) != "begun" || !errors.Is(err, ErrSilent) {
			t.Fatalf("%q %v", b, err)
		}
	})
}

func TestDial(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := New(Config{Allow: loopback}).Dial(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for _, c := range [][2]string{{"tcp", ln.Addr().String()}, {"udp", "127.0.0.1:53"}, {"tcp", "nonsense"}} {
		g := New(Config{})
		if c[0] == "udp" {
			g = New(Config{Allow: loopback})
		}
		if conn, err := g.Dial(context.Background(), c[0], c[1]); err == nil {
			conn.Close()
			t.Fatalf("%v was dialled", c)
		}
	}
}

func TestAllowOfMappedRange(t *testing.T) {
	g := New(Config{Allow: []netip.Prefix{netip.MustParsePrefix("::ffff:10.1.0.0/112"), netip.MustParsePrefix("10.2.3.4/16")}})
	for addr, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.200.1": true, "10.3.0.1": false, "fe80::1%lo": false} {
		if got := g.CheckAddr(netip.AddrPortFrom(netip.MustParseAddr(addr), 80)) == nil; got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
}

// FuzzCheckURL: every URL that is let through has a host on which the dialler agrees, and the
// guard never panics.
func FuzzCheckURL(f *testing.F) {
	for _, s := range []string{"https://a.example/", "http://127.0.0.1:80/", "https://[::1%25lo]/", "https://0x7f.1/", "https://a@b.example:1/", "https://[::ffff:1.2.3.4]/", "https://localhost./", "http:/\\evil", "https://a.example:99999"} {
		f.Add(s)
	}
	g := New(Config{Resolver: names{"in.example": {"10.0.0.1"}}})
	f.Fuzz(func(t *testing.T, raw string) {
		if g.CheckURL(context.Background(), raw, Rules{HTTPSOnly: true}) != nil {
			return
		}
		r, err := http.NewRequest(http.MethodPost, raw, nil)
		if err != nil {
			t.Fatalf("%q was let through: %v", raw, err)
		}
		host := r.URL.Hostname()
		if r.URL.Scheme != "https" || r.URL.User != nil || host == "" || strings.EqualFold(host, "localhost") || strings.EqualFold(strings.TrimSuffix(host, "."), "in.example") {
			t.Fatalf("%q was let through", raw)
		}
		if a, err := netip.ParseAddr(host); err == nil && !Public(a) {
			t.Fatalf("%q was let through", raw)
		}
	})
}
