package browser

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// From the commit on, the proxy of a session reads the requests of https pages: it ends Chromium's
// TLS with a certificate of its own, checks the site's as any client does, and sends each request
// once, over a connection of its own. What it does not understand, or may not read, stays a
// tunnel.

// identity is the key of the certificates that a Chromium accepts from its proxies. It lives in
// memory, and no other browser accepts it.
type identity struct {
	key *ecdsa.PrivateKey
	pin string // the hash of the public key, as Chromium's arguments name it
}

func newIdentity() (*identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(public)
	return &identity{key, base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// certificate returns one for a host.
func (i *identity) certificate(host string) (*tls.Certificate, error) {
	now := time.Now()
	of := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "svc"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true}
	if ip := net.ParseIP(host); ip != nil {
		of.IPAddresses = []net.IP{ip}
	} else {
		of.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &i.key.PublicKey, i.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: i.key}, nil
}

const (
	handshakeWait = 10 * time.Second
	freshFor      = 2 * time.Second // a connection to a site is given up if no request came by then
)

// peeked is a connection whose first bytes were read into a buffer.
type peeked struct {
	net.Conn
	from *bufio.Reader
	once sync.Once
	over chan struct{} // closed with the connection
}

func (c *peeked) Read(b []byte) (int, error) { return c.from.Read(b) }

func (c *peeked) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}

// once is a listener of one connection. It ends with it.
type once struct {
	c     chan net.Conn
	until <-chan struct{}
	at    net.Addr
}

func (l *once) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.until:
		return nil, net.ErrClosed
	}
}

func (l *once) Close() error   { return nil }
func (l *once) Addr() net.Addr { return l.at }

// read serves a tunnel's requests if the proxy may read them, to the tunnel's end. If it returns
// false, nothing was taken from the client.
func (p *proxy) read(t *tunnel, from *bufio.Reader, address string) bool {
	p.mu.Lock()
	as, judges := p.identity, p.judges
	p.mu.Unlock()
	host, _, err := net.SplitHostPort(address)
	if as == nil || err != nil {
		return judges
	}
	if first, err := from.Peek(1); err != nil || first[0] != 22 { // TLS begins with a handshake
		return false
	}
	site, err := p.secure(p.ctx, t.site, host)
	if err != nil && judges {
		return true
	}
	if err != nil { // a bad certificate, or no HTTP/1.1: Chromium is to judge over an unused connection
		again, err := p.dial(p.ctx, "tcp", address)
		if err != nil {
			return true
		}
		t.use(again)
		return false
	}
	certificate, err := p.certificate(as, host)
	if err != nil {
		return true
	}
	var taken atomic.Bool
	ready := time.Now()
	over := &http.Transport{Proxy: nil, DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: headerWait, MaxResponseHeaderBytes: maxHeader,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !taken.Swap(true) && time.Since(ready) < freshFor {
				return site, nil
			}
			c, err := p.dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			s, err := p.secure(ctx, c, host)
			if err != nil { // no request was sent
				return nil, &net.OpError{Op: "dial", Net: network, Err: err}
			}
			return s, nil
		}}
	client := &peeked{Conn: t.client, from: from, over: make(chan struct{})}
	server := &http.Server{ReadHeaderTimeout: headerWait, MaxHeaderBytes: maxHeader, ErrorLog: silent, BaseContext: func(net.Listener) context.Context { return p.ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.Scheme, r.URL.Host = "https", address
			p.pass(w, r, over)
		})}
	one := &once{make(chan net.Conn, 1), client.over, t.client.LocalAddr()}
	one.c <- tls.Server(client, &tls.Config{Certificates: []tls.Certificate{*certificate}, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true})
	_ = server.Serve(one)
	return true
}

// certificate returns one for a host, the same for each connection: a Chromium that ignores an error does so for
// the one certificate, and asks again for the next.
func (p *proxy) certificate(as *identity, host string) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.made[host]; c != nil {
		return c, nil
	}
	c, err := as.certificate(host)
	if err == nil && len(p.made) < maxHosts {
		p.made[host] = c
	}
	return c, err
}

// readable reports whether the proxy can read the requests to those of the hosts that tunnels were asked for: their certificates check,
// and they speak HTTP/1.1. Hosts have a port where it is not 443.
func (p *proxy) readable(ctx context.Context, hosts []string) bool {
	ctx, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	p.mu.Lock()
	asked := slices.Collect(maps.Keys(p.hosts))
	p.mu.Unlock()
	var all sync.WaitGroup
	var bad atomic.Bool
	for _, address := range asked {
		if !slices.Contains(hosts, strings.TrimSuffix(strings.ToLower(address), ":443")) {
			continue
		}
		all.Go(func() {
			name, _, err := net.SplitHostPort(address)
			var site net.Conn
			if err == nil {
				site, err = p.dial(ctx, "tcp", address)
			}
			if err == nil {
				site, err = p.secure(ctx, site, name)
			}
			if err != nil {
				bad.Store(true)
				return
			}
			site.Close()
		})
	}
	all.Wait()
	return !bad.Load()
}

// secure begins TLS with a site. It closes c if that fails.
func (p *proxy) secure(ctx context.Context, c net.Conn, host string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	site := tls.Client(c, &tls.Config{ServerName: host, NextProtos: []string{"http/1.1"}, InsecureSkipVerify: p.anyCertificate, RootCAs: p.roots})
	if err := site.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return site, nil
}

// join carries a WebSocket.
func (p *proxy) join(w http.ResponseWriter, resp *http.Response) {
	site, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		http.Error(w, "", http.StatusBadGateway)
		return
	}
	client, from, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = resp.Header.Write(&head)
	head.WriteString("\r\n")
	if _, err := client.Write(head.Bytes()); err != nil {
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(site, from)
		site.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := site.Read(buf)
		if n > 0 && !p.receive(n) {
			break
		}
		if n > 0 && err == nil {
			_, err = client.Write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	client.Close()
	site.Close()
	up.Wait()
}
