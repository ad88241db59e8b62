package dev

import (
	"net"
	"net/http"
	"net/url"
	"time"
)

// local is a server of svc dev on the loopback address.
type local struct {
	url    string
	server *http.Server
	done   chan error
}

const anyPort = "127.0.0.1:0"

// openLocal serves h at the port of last, the URL at the last start, if it is free, and otherwise at any.
func openLocal(last string, h http.Handler) (*local, error) {
	at := anyPort
	if u, err := url.Parse(last); err == nil && u.Port() != "" {
		at = net.JoinHostPort("127.0.0.1", u.Port())
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		l, err = net.Listen("tcp", anyPort)
	}
	if err != nil {
		return nil, err
	}
	s := &local{url: "http://" + l.Addr().String(), server: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}, done: make(chan error, 1)}
	go func() { s.done <- s.server.Serve(l) }()
	return s, nil
}

// close ends the server. Its clients are the service, which has stopped, and the service's browsers.
func (s *local) close() {
	_ = s.server.Close()
	<-s.done
}
