// Package blobtest gives a test an S3-compatible server of its own: a versitygw process that
// keeps a bucket in a directory of the test. It ends with the test.
package blobtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsvc/schemas/testkit"
)

// module is the server's package. Its version is exact, like that of every other part.
const module = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

// Credentials and names that the server knows. The secret must be in no log.
const (
	KeyID  = "AKIATESTKEY"
	Secret = "not/to+be-logged"
	Bucket = "files"
	Region = "eu-test-1"
)

// Server is a versitygw.
type Server struct {
	Addr string
	Dir  string // of the bucket

	t      testing.TB
	root   string
	scheme string
	client *http.Client
	more   []string // flags
	cmd    *exec.Cmd
}

// New starts a server with an empty bucket.
func New(t testing.TB) *Server {
	t.Helper()
	s := prepare(t)
	s.Start()
	return s
}

// NewTLS starts a server that speaks https only, and returns the authority of its certificate.
func NewTLS(t testing.TB) (*Server, *x509.CertPool) {
	t.Helper()
	s := prepare(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for kind, der := range map[string][]byte{"CERTIFICATE": cert, "PRIVATE KEY": secret} {
		if err := os.WriteFile(filepath.Join(s.root, kind), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AddCert(parsed)
	s.scheme, s.more = "https", []string{"--cert", filepath.Join(s.root, "CERTIFICATE"), "--key", filepath.Join(s.root, "PRIVATE KEY")}
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities}, DisableKeepAlives: true}}
	s.Start()
	return s, authorities
}

func prepare(t testing.TB) *Server {
	t.Helper()
	root, err := os.MkdirTemp("", "svc-s3-")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, root: root, Dir: filepath.Join(root, "data", Bucket), scheme: "http", client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	t.Cleanup(func() {
		s.Kill()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{s.Dir, filepath.Join(root, "iam")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.Addr = reserved(t)
	return s
}

// Start starts the server and waits until it answers. It keeps what it stored before.
func (s *Server) Start() {
	s.t.Helper()
	s.cmd = exec.Command(binary(s.t), append(append([]string{"--access", KeyID, "--secret", Secret, "--region", Region, "--port", s.Addr, "--health", "/health",
		"--iam-dir", filepath.Join(s.root, "iam"), "--quiet"}, s.more...), "posix", filepath.Dir(s.Dir))...)
	log, err := os.Create(filepath.Join(s.root, "log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	testkit.Eventually(s.t, "versitygw answers", func() bool {
		resp, err := s.client.Get(s.scheme + "://" + s.Addr + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// Kill ends the server at once.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	s.Signal(syscall.SIGCONT) // in case it was paused
	s.Signal(syscall.SIGKILL)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Signal sends the server's process a signal.
func (s *Server) Signal(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
}

// Pause makes the server hang: it returns once every thread has stopped.
func (s *Server) Pause() {
	s.t.Helper()
	s.Signal(syscall.SIGSTOP)
	testkit.Eventually(s.t, "versitygw has stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			return false
		}
		for _, at := range threads {
			if stat, err := os.ReadFile(at); err != nil || !strings.Contains(string(stat), ") T ") {
				return false
			}
		}
		return true
	})
}

// URL is a value of SVC_FILES_URL for a prefix of the bucket.
func (s *Server) URL(prefix string) string {
	return s.As(KeyID, Secret, prefix)
}

// As is such a URL with other credentials.
func (s *Server) As(keyID, secret, prefix string) string {
	return (&url.URL{Scheme: "s3", User: url.UserPassword(keyID, secret), Host: Bucket, Path: "/" + prefix,
		RawQuery: url.Values{"endpoint": {s.scheme + "://" + s.Addr}, "region": {Region}}.Encode()}).String()
}

// User creates an account that has no right to the bucket.
func (s *Server) User(keyID, secret string) {
	s.t.Helper()
	out, err := exec.Command(binary(s.t), "admin", "--access", KeyID, "--secret", Secret, "--region", Region, "--endpoint-url", "http://"+s.Addr,
		"create-user", "--access", keyID, "--secret", secret, "--role", "user").CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// binary returns the path of a versitygw: the one of PATH, or one that is built once for this
// machine.
func binary(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("versitygw"); err == nil {
		return path
	}
	path, err := built()
	if err != nil {
		t.Fatalf("versitygw is not installed (go install %s), and cannot be built: %v", module, err)
	}
	return path
}

func built() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	_, version, _ := strings.Cut(module, "@")
	dir := filepath.Join(cache, "svc-test", "versitygw-"+version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, "lock")) // of several test processes one builds
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "versitygw")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	build := exec.Command("env", "GOBIN="+dir, "GOFLAGS=", "go", "install", module)
	build.Dir = dir // outside of this module
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
}

// reserved is an address that no other process gets during the test: a socket is bound to it
// that never listens, and Linux gives the port only to a process that asks for it.
func reserved(t testing.TB) string {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	err = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
}
