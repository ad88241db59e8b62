// Package cachetest gives a test a Redis of its own: a redis-server on a unix socket in a
// test directory. It ends with the test.
package cachetest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"agentsvc/persistence/cache"
)

// Server is a redis-server.
type Server struct {
	URL string // unix://…, with the password

	t      testing.TB
	socket string
	dir    string
	cmd    *exec.Cmd
}

// Password is the server's password.
const Password = "not-to-be-logged"

// New starts a server.
func New(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "svc-redis-") // the path of a unix socket must be short
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, dir: dir, socket: filepath.Join(dir, "s")}
	s.URL = "unix://:" + Password + "@" + s.socket
	t.Cleanup(func() {
		s.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.Start()
	return s
}

// Start starts the server, empty, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		s.t.Fatal("redis-server is not installed: apt-get install redis-server")
	}
	s.cmd = exec.Command(bin, "--port", "0", "--unixsocket", s.socket, "--save", "", "--appendonly", "no",
		"--dir", s.dir, "--requirepass", Password, "--daemonize", "no")
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	c, err := cache.Open(s.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		if conn, err := net.Dial("unix", s.socket); err == nil {
			conn.Close()
			break // otherwise each failed attempt would make the client's next one later
		}
		if ctx.Err() != nil {
			s.t.Fatal("redis-server does not listen")
		}
		runtime.Gosched()
	}
	for c.Ping(ctx) != nil {
		if ctx.Err() != nil {
			s.t.Fatal("redis-server does not answer")
		}
		runtime.Gosched()
	}
}

// Kill ends the server at once; its data is lost.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	s.Signal(syscall.SIGCONT) // in case it was paused
	s.Signal(syscall.SIGKILL)
	s.cmd.Wait()
	s.cmd = nil
}

// Signal sends the server's process a signal: SIGSTOP makes it hang.
func (s *Server) Signal(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
}
