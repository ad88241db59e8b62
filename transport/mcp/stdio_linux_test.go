package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
)

// stdioServer is what this test binary is when a gateway starts it.
func stdioServer(mode string) {
	switch mode {
	case "broken":
		fmt.Fprintln(os.Stderr, "starting")
		fmt.Fprintln(os.Stderr, "no license for "+os.Getenv("MCP_TOKEN"))
		os.Exit(1)
	case "parent":
		g := New(Config{Guard: egress.New(egress.Config{}), Stdio: map[string][]string{"self": {os.Args[0], "stdio-server", "plain"}}})
		a, err := g.Call(context.Background(), stdioTarget(), "pid", nil)
		fmt.Println(a.Content, err)
		select {}
	}
	var notes *os.File // of everything it was told
	if mode == "noting" {
		var err error
		if notes, err = os.OpenFile(os.Args[3], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			os.Exit(1)
		}
	}
	in := bufio.NewReaderSize(os.Stdin, 64<<10)
	var mu sync.Mutex
	var cancelled []string
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if notes != nil {
				_, _ = notes.Write(line)
			}
			return
		}
		if notes != nil {
			_, _ = notes.Write(line)
		}
		var m message
		_ = json.Unmarshal(line, &m)
		if mode == "noisy" {
			say("listening …\n{\"half\":\n\x00\xff\n[]")
		}
		done := func(s string) {
			b, _ := json.Marshal(s)
			say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, m.ID, b)
		}
		switch m.Method {
		case "initialize":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"self","version":"1"}}}`, m.ID)
		case "tools/list":
			var names []string
			for _, n := range []string{"echo", "env", "pid", "child", "hang", "cancelled", "die", "big", "rich", "chatty", "ask"} {
				names = append(names, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, n))
			}
			say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}`, m.ID, strings.Join(names, ","))
		case "notifications/cancelled":
			cancelled = append(cancelled, string(m.Params.RequestID))
		case "notifications/initialized":
		case "tools/call":
			switch m.Params.Name {
			case "echo":
				done(string(m.Params.Arguments))
			case "env":
				env := os.Environ()
				slices.Sort(env)
				done(strings.Join(env, "\n"))
			case "pid":
				done(strconv.Itoa(os.Getpid()))
			case "child":
				c := exec.Command("sleep", "1000")
				if err := c.Start(); err != nil {
					done(err.Error())
				}
				done(strconv.Itoa(c.Process.Pid))
			case "hang":
			case "cancelled":
				done(strings.Join(cancelled, " "))
			case "die":
				os.Exit(3)
			case "big":
				mu.Lock()
				for {
					if _, err := io.WriteString(os.Stdout, strings.Repeat("x", 1<<20)); err != nil {
						return
					}
				}
			case "rich":
				say(`{"jsonrpc":"2.0","id":%s,"result":{"structuredContent":[%s0]}}`, m.ID, strings.Repeat("0,", maxValues))
			case "chatty":
				for range 256 {
					fmt.Fprintln(os.Stderr, strings.Repeat("e", 32<<10))
				}
				done("said all")
			case "ask":
				say(`{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}`)
				back, _ := in.ReadString('\n')
				done(back)
			}
		default:
			if len(m.ID) > 0 {
				say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
			}
		}
	}
}

// quickExit keeps the race detector from making each process sleep a second before
// it ends.
const quickExit = "GORACE=atexit_sleep_ms=0"

func stdioTarget() Target {
	return Target{
		Tenant: id.TenantID{UUID: id.NewAnywhere()}, Server: id.ServerID{UUID: id.NewAnywhere()}, Slug: "local",
		Transport: tool.Stdio, Endpoint: "self", AuthKind: tool.AuthNone, Version: time.Unix(1_700_000_000, 0),
	}
}

func stdio(t *testing.T, mode string, change func(*Config)) *Gateway {
	t.Helper()
	return gateway(t, func(c *Config) {
		c.Guard = egress.New(egress.Config{Observe: func(netip.AddrPort, error) error { return errors.New("no network") }})
		c.Stdio = map[string][]string{"self": {os.Args[0], "stdio-server", mode}}
		c.Env = []string{quickExit}
		if change != nil {
			change(c)
		}
	})
}

func TestStdio(t *testing.T) {
	for _, mode := range []string{"plain", "noisy"} {
		t.Run(mode, func(t *testing.T) {
			g := stdio(t, mode, nil)
			to := stdioTarget()
			specs, err := g.Tools(t.Context(), to)
			if err != nil || len(specs) != 11 {
				t.Fatal(len(specs), err)
			}
			if a := call(t, g, to, "echo", `{"n":12345678901234567890}`); a.Content != `{"n":12345678901234567890}` {
				t.Fatalf("%+v", a)
			}
		})
	}
}

// TestStdioEnvironment: nothing of our environment except what the operator's configuration
// names, and the credential as the protocol requires.
func TestStdioEnvironment(t *testing.T) {
	t.Setenv("SVC_MASTER_KEY", "never")
	for _, c := range []struct {
		kind tool.AuthKind
		want string
	}{
		{tool.AuthNone, quickExit + "\nHOME=/nowhere\nPATH=/bin"},
		{tool.AuthBearer, quickExit + "\nHOME=/nowhere\nMCP_TOKEN=[redacted]\nPATH=/bin"},
		{tool.AuthOAuth, quickExit + "\nHOME=/nowhere\nMCP_TOKEN=[redacted]\nPATH=/bin"},
		{tool.AuthAPIKey, quickExit + "\nHOME=/nowhere\nMCP_API_KEY=[redacted]\nPATH=/bin"},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			g := stdio(t, "plain", func(cfg *Config) { cfg.Env = []string{"PATH=/bin", "HOME=/nowhere", quickExit} })
			to := stdioTarget()
			to.AuthKind = c.kind
			to.Credential = func(context.Context) (string, error) { return secret, nil }
			if a := call(t, g, to, "env", `{}`); a.Content != c.want {
				t.Fatalf("%s", a.Content)
			}
		})
	}
}

// TestStdioProcesses: one for each (server, connection), gone with its children
// when it is idle, forgotten, or the gateway closes.
func TestStdioProcesses(t *testing.T) {
	at := newClock()
	g := stdio(t, "plain", func(c *Config) { c.Now = at.now })
	a, b := stdioTarget(), stdioTarget()
	other := a
	other.Connection = &id.ConnectionID{UUID: id.NewAnywhere()}
	pid := func(to Target) string { t.Helper(); return call(t, g, to, "pid", `{}`).Content }
	first := pid(a)
	if pid(a) != first || pid(b) == first || pid(other) == first {
		t.Fatal("processes are shared or begun anew")
	}
	child := call(t, g, a, "child", `{}`).Content
	at.pass(5 * time.Minute)
	call(t, g, b, "pid", `{}`)
	g.sweep()
	testkit.Eventually(t, "the idle process and its child are gone", func() bool { return gone(first) && gone(child) })
	second := pid(a)
	if second == first {
		t.Fatal("the same process")
	}
	g.Forget(a.Tenant, a.Server)
	testkit.Eventually(t, "the forgotten process is gone", func() bool { return gone(second) })
	third, fourth := pid(a), pid(b)
	g.Close(t.Context())
	if !gone(third) || !gone(fourth) {
		t.Fatal("a process outlived the gateway")
	}
}

// TestStdioTimeOutEndsOnlyTheRequest: the process lives on and hears of it.
func TestStdioTimeOutEndsOnlyTheRequest(t *testing.T) {
	g := stdio(t, "plain", nil)
	to := stdioTarget()
	before := call(t, g, to, "pid", `{}`).Content
	for limit := 250 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := g.Call(ctx, to, "hang", nil)
		cancel()
		var e *Error
		if !errors.As(err, &e) || e.Kind != Timeout || !e.MaybeRan && limit > testkit.Patience {
			t.Fatal(err)
		}
		if e.MaybeRan { // else a busy machine had no time to send it
			break
		}
	}
	testkit.Eventually(t, "the process hears notifications/cancelled", func() bool { return call(t, g, to, "cancelled", `{}`).Content != "" })
	if call(t, g, to, "pid", `{}`).Content != before {
		t.Fatal("another process")
	}
}

// TestWhatCanGoWrongWithAProcess: one row, one way; the next call has a new one.
func TestWhatCanGoWrongWithAProcess(t *testing.T) {
	for _, c := range []struct {
		tool string
		kind Kind
	}{
		{"die", Unreachable},
		{"big", TooLarge},
		{"rich", TooLarge},
	} {
		t.Run(c.tool, func(t *testing.T) {
			g := stdio(t, "plain", nil)
			to := stdioTarget()
			before := call(t, g, to, "pid", `{}`).Content
			_, err := g.Call(t.Context(), to, c.tool, nil)
			var e *Error
			if !errors.As(err, &e) || e.Kind != c.kind || !e.MaybeRan {
				t.Fatal(err)
			}
			testkit.Eventually(t, "it is gone", func() bool { return gone(before) })
			if call(t, g, to, "pid", `{}`).Content == before {
				t.Fatal("the same process")
			}
		})
	}
	t.Run("it writes megabytes to standard error", func(t *testing.T) {
		g := stdio(t, "plain", nil)
		if a := call(t, g, stdioTarget(), "chatty", `{}`); a.Content != "said all" {
			t.Fatalf("%+v", a)
		}
	})
	t.Run("it does not start", func(t *testing.T) {
		g := stdio(t, "broken", nil)
		to := stdioTarget()
		to.AuthKind, to.Credential = tool.AuthBearer, func(context.Context) (string, error) { return secret, nil }
		_, err := g.Tools(t.Context(), to)
		var e *Error
		if !errors.As(err, &e) || e.Kind != Unreachable || e.MaybeRan || leaks(err.Error()) != "" {
			t.Fatal(err)
		}
	})
	t.Run("there is no such command", func(t *testing.T) {
		g := stdio(t, "plain", func(c *Config) { c.Stdio["self"] = []string{"/nowhere/at/all"} })
		if _, err := g.Tools(t.Context(), stdioTarget()); kindOf(err) != Unreachable {
			t.Fatal(err)
		}
	})
	t.Run("too many are running", func(t *testing.T) {
		g, to := stdio(t, "plain", nil), stdioTarget()
		for range maxProcesses / 2 {
			if !g.forks.enter(to.Tenant) {
				t.Fatal("a tenant has less than half of the places")
			}
		}
		if _, err := g.Tools(t.Context(), to); kindOf(err) != Unreachable {
			t.Fatal(err)
		}
		other := stdioTarget()
		other.Tenant = id.TenantID{UUID: id.NewAnywhere()}
		if _, err := g.Tools(t.Context(), other); err != nil {
			t.Fatal("another tenant has no place", err)
		}
		g.forks.leave(to.Tenant)
		if _, err := g.Tools(t.Context(), to); err != nil {
			t.Fatal("the place was not given back", err)
		}
	})
	t.Run("it asks for a sample", func(t *testing.T) {
		g := stdio(t, "plain", nil)
		if a := call(t, g, stdioTarget(), "ask", `{}`); !strings.Contains(a.Content, "-32601") {
			t.Fatalf("%+v", a)
		}
	})
}

// TestWhoDoesNotReadIsKilled: writing never waits for a process.
func TestWhoDoesNotReadIsKilled(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		t.Run(fmt.Sprintf("messages of %d bytes", size), func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			killed := false
			b := newInbox(w, func() bool { return true }, func() { killed = true; r.Close() })
			var pump sync.WaitGroup
			pump.Go(b.pump)
			said := 0
			for m := make([]byte, size); !killed && said < 20_000; said++ {
				_, err = b.Write(m)
			}
			if !killed || !errors.Is(err, errDead) || said*size > maxUnread+2<<20 {
				t.Fatalf("%d messages, %v", said, err)
			}
			b.Close()
			pump.Wait()
			if _, err := b.Write(nil); !errors.Is(err, errDead) {
				t.Fatal(err)
			}
		})
	}
}

// TestProcessesDieWithUs: kill -9 of the service takes its stdio servers along.
func TestProcessesDieWithUs(t *testing.T) {
	parent := exec.Command(os.Args[0], "stdio-server", "parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid, failure string
	_, err = fmt.Fscan(out, &pid, &failure)
	alive := !gone(pid)
	_ = parent.Process.Kill()
	_ = parent.Wait()
	if err != nil || failure != "<nil>" || !alive {
		t.Fatal(pid, failure, err, alive)
	}
	testkit.Eventually(t, "the child is gone", func() bool { return gone(pid) })
}

// gone reports whether a process has ended, reaped or not.
func gone(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
