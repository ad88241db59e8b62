//go:build npm

// Package conformance drives transport/mcp with what others wrote: the protocol's
// reference server (server-everything, over Streamable HTTP and stdio) and the
// client scenarios of the protocol's conformance tool. It needs Node 20 and npm:
//
//	go test -tags npm ./transport/mcp/conformance
//
// The packages are installed once for each package-lock.json into the user's
// cache directory.
//
// Of the tool's client scenarios initialize, tools_call and sse-retry apply. The
// others do not: elicitation-sep1034-client-defaults wants a client that answers
// for a user, where ours refuses; all of auth/* are OAuth flows (discovery of the
// authorization server, registration, scopes, token endpoints), where ours sends
// the access token it was given, as `auth_kind: oauth` says.
package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
)

var modules string // the installed node_modules

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "scenario" {
		if err := scenario(os.Getenv("MCP_CONFORMANCE_SCENARIO"), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	dir, err := install()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	modules = filepath.Join(dir, "node_modules")
	goleak.VerifyTestMain(m)
}

// install puts the packages of package-lock.json into the cache, whole or not at
// all.
func install() (string, error) {
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "agentsvc", "conformance-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc"} {
		b, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(fresh, name), b, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	ci := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	ci.Dir = fresh
	if out, err := ci.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(dir); there == nil {
			return dir, nil // somebody else was quicker
		}
		return "", err
	}
	return dir, nil
}

func gateway(change func(*mcp.Config)) *mcp.Gateway {
	c := mcp.Config{Guard: egress.New(egress.Config{
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
		Observe: func(to netip.AddrPort, verdict error) error {
			if !to.Addr().Unmap().IsLoopback() {
				return errors.New("tests dial loopback only")
			}
			return nil
		},
	})}
	if change != nil {
		change(&c)
	}
	return mcp.New(c)
}

func target(endpoint string) mcp.Target {
	return mcp.Target{
		Tenant: id.TenantID{UUID: id.NewAnywhere()}, Server: id.ServerID{UUID: id.NewAnywhere()}, Slug: "everything",
		Transport: tool.HTTP, Endpoint: endpoint, AuthKind: tool.AuthBearer, Version: time.Unix(1, 0),
		Credential: func(context.Context) (string, error) { return "not-a-secret", nil },
	}
}

// scenario is this test binary as the client that the conformance tool starts.
func scenario(name, endpoint string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g := gateway(nil)
	defer g.Close(ctx)
	to := target(endpoint)
	to.AuthKind = tool.AuthNone
	specs, err := g.Tools(ctx, to)
	if err != nil {
		return err
	}
	args := map[string]string{"add_numbers": `{"a":5,"b":3}`, "test_reconnection": `{}`}
	for _, s := range specs {
		a, err := g.Call(ctx, to, s.Name, json.RawMessage(args[s.Name]))
		if err != nil {
			return err
		}
		fmt.Println(s.Name, a.Content, a.IsError)
	}
	if len(specs) == 0 && name != "initialize" {
		return errors.New("no tools")
	}
	return nil
}

func TestClientScenarios(t *testing.T) {
	shim, err := filepath.Abs("glob.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"initialize", "tools_call", "sse-retry"} {
		t.Run(s, func(t *testing.T) {
			cmd := exec.Command("node", "--import", shim, filepath.Join(modules, "@modelcontextprotocol/conformance/dist/index.js"),
				"client", "--command", os.Args[0]+" scenario", "--scenario", s)
			cmd.Dir = t.TempDir()
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("Passed: ")) || bytes.Contains(out, []byte("Passed: 0/")) {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// everything starts the reference server and waits for it.
func everything(t *testing.T, port string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("node", filepath.Join(modules, "@modelcontextprotocol/server-everything/dist/index.js"), "streamableHttp")
	cmd.Env = append(os.Environ(), "PORT="+port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testkit.Eventually(t, "the server listens", func() bool {
		c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return cmd
}

// freePort takes a port that nothing else is given until the test's end. A server that reuses addresses may listen on it.
func freePort(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(name.(*syscall.SockaddrInet4).Port)
}

// tour is what holds with the reference server over either transport.
func tour(t *testing.T, g *mcp.Gateway, to mcp.Target) {
	specs, err := g.Tools(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
		if !json.Valid(s.Schema) || s.Description == "" || s.Owner != "everything" {
			t.Errorf("%+v", s)
		}
	}
	for _, want := range []string{"echo", "get-sum", "get-env", "get-tiny-image", "get-structured-content", "trigger-long-running-operation"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not listed in %v", want, names)
		}
	}
	// Tools that need what we refuse are not offered to a client like ours.
	for _, never := range []string{"trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"} {
		if slices.Contains(names, never) {
			t.Errorf("%s is listed", never)
		}
	}
	for _, c := range []struct {
		tool, args string
		want       string
		failure    bool
	}{
		{"echo", `{"message":"hi"}`, "Echo: hi", false},
		{"get-sum", `{"a":2,"b":40}`, "The sum of 2 and 40 is 42.", false},
		{"get-sum", `{"a":"x"}`, "Input validation error", true},
		{"get-structured-content", `{"location":"Chicago"}`, `"temperature":`, false},
		{"get-tiny-image", `{}`, `{"type":"image","mimeType":"image/png","bytes":`, false},
		{"get-resource-links", `{"count":2}`, `"type":"resource_link"`, false},
		{"get-resource-reference", `{"resourceType":"Text","resourceId":1}`, `"type":"resource"`, false},
		{"get-annotated-message", `{"messageType":"error","includeImage":true}`, "Error: Operation failed", false},
	} {
		t.Run(c.tool+c.args, func(t *testing.T) {
			a, err := g.Call(t.Context(), to, c.tool, json.RawMessage(c.args))
			if err != nil || a.IsError != c.failure || !strings.Contains(a.Content, c.want) {
				t.Fatalf("%+v %v", a, err)
			}
		})
	}
	t.Run("progress", func(t *testing.T) {
		a, err := g.Call(t.Context(), to, "trigger-long-running-operation", json.RawMessage(`{"duration":0.2,"steps":2}`))
		if err != nil || !strings.Contains(a.Content, "completed") {
			t.Fatalf("%+v %v", a, err)
		}
	})
	t.Run("time-out", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := g.Call(ctx, to, "trigger-long-running-operation", json.RawMessage(`{"duration":30,"steps":1}`))
		var e *mcp.Error
		if !errors.As(err, &e) || e.Kind != mcp.Timeout || !e.MaybeRan {
			t.Fatal(err)
		}
	})
	t.Run("64 at once", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				a, err := g.Call(t.Context(), to, "echo", json.RawMessage(fmt.Sprintf(`{"message":"n%d"}`, i)))
				if err != nil || a.Content != fmt.Sprintf("Echo: n%d", i) {
					t.Errorf("%+v %v", a, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestEverythingOverHTTP(t *testing.T) {
	port := freePort(t)
	server := everything(t, port)
	g := gateway(nil)
	defer g.Close(context.Background())
	to := target("http://127.0.0.1:" + port + "/mcp")
	tour(t, g, to)
	t.Run("it restarts", func(t *testing.T) {
		_ = server.Process.Kill()
		_ = server.Wait()
		_, err := g.Call(t.Context(), to, "echo", json.RawMessage(`{"message":"hi"}`))
		var e *mcp.Error
		if !errors.As(err, &e) || e.Kind != mcp.Unreachable {
			t.Fatal(err)
		}
		everything(t, port)
		// It answers 400 to sessions it does not know. Tools that say that a repeat
		// does no harm are repeated, the next call of any works.
		if _, err = g.Call(t.Context(), to, "echo", json.RawMessage(`{"message":"hi"}`)); err != nil && (!errors.As(err, &e) || e.Kind != mcp.Protocol || e.MaybeRan) {
			t.Fatal(err)
		}
		if a, err := g.Call(t.Context(), to, "echo", json.RawMessage(`{"message":"again"}`)); err != nil || a.Content != "Echo: again" {
			t.Fatalf("%+v %v", a, err)
		}
	})
}

func TestEverythingOverStdio(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SVC_MASTER_KEY", "never")
	g := gateway(func(c *mcp.Config) {
		c.Stdio = map[string][]string{"everything": {node, filepath.Join(modules, "@modelcontextprotocol/server-everything/dist/index.js"), "stdio"}}
		c.Env = []string{"PATH=" + os.Getenv("PATH")}
	})
	defer g.Close(context.Background())
	to := target("everything")
	to.Transport = tool.Stdio
	tour(t, g, to)
	a, err := g.Call(t.Context(), to, "get-env", nil)
	if err != nil || strings.Contains(a.Content, "SVC_") || strings.Contains(a.Content, "not-a-secret") || !strings.Contains(a.Content, `"MCP_TOKEN": "[redacted]"`) {
		t.Fatalf("%+v %v", a, err)
	}
}
