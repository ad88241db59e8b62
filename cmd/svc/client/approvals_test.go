package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Ids of the fake service.
const (
	agentID  = "0193a000-0000-7000-8000-0000000000a1"
	threadID = "0193a000-0000-7000-8000-0000000000b1"
	runID    = "0193a000-0000-7000-8000-0000000000c1"
	firstID  = "0193b111-0000-7000-8000-000000000001"
	secondID = "0193b122-0000-7000-8000-000000000002"
	doneID   = "0193b133-0000-7000-8000-000000000003"
)

// outcomes are the statuses that actions end in.
var outcomes = map[string]string{"approve": "approved", "edit": "edited", "reject": "rejected", "respond": "responded"}

// fakeAPI answers as the service does, as far as the commands ask.
type fakeAPI struct {
	*httptest.Server
	frames chan string // to the one stream

	mu        sync.Mutex        // guards the fields below
	asked     []string          // requests but streams: method, path, query, body
	approvals map[string]object // by id
	refuse    map[string]object // problems, by "METHOD path"
	detail    object            // of the run, in place of a run of an agent
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	f := &fakeAPI{frames: make(chan string), approvals: map[string]object{}, refuse: map[string]object{}}
	mux := http.NewServeMux()
	answer := func(pattern string, say func(r *http.Request, body []byte) any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if r.Header.Get("Authorization") != "Bearer svc_test" || r.Header.Get("X-Tenant-Id") != "tenant" {
				t.Errorf("%s %s: headers %v", r.Method, r.URL, r.Header)
			}
			line := strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body))
			f.mu.Lock()
			f.asked = append(f.asked, line)
			refused := f.refuse[r.Method+" "+r.URL.Path]
			var said any
			if refused == nil {
				said = say(r, body)
			}
			f.mu.Unlock()
			if refused == nil {
				if p, is := said.(object); is && p["code"] != nil {
					refused = p
				}
			}
			if refused != nil {
				w.WriteHeader(refused["status"].(int))
				said = refused
			}
			if err := json.NewEncoder(w).Encode(said); err != nil {
				t.Error(err)
			}
		})
	}
	answer("GET /v1/agents", func(*http.Request, []byte) any {
		return object{"items": []object{{"id": agentID, "slug": "helper"}}, "next_cursor": nil}
	})
	answer("GET /v1/approvals", func(r *http.Request, _ []byte) any {
		items := []object{}
		for _, a := range f.approvals {
			if want := r.URL.Query().Get("status"); want == "" || want == a["status"] {
				items = append(items, a)
			}
		}
		slices.SortFunc(items, func(a, b object) int { return strings.Compare(b["id"].(string), a["id"].(string)) })
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		items = items[min(from, len(items)):]
		if n, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && n < len(items) {
			return object{"items": items[:n], "next_cursor": strconv.Itoa(from + n)}
		}
		return object{"items": items, "next_cursor": nil}
	})
	answer("GET /v1/approvals/{id}", func(r *http.Request, _ []byte) any {
		if a := f.approvals[r.PathValue("id")]; a != nil {
			return a
		}
		return object{"status": 404, "code": "NOT_FOUND", "detail": "There is no such approval."}
	})
	answer("GET /v1/agents/{id}", func(*http.Request, []byte) any { return object{"agent": object{"id": agentID, "slug": "helper"}} })
	answer("GET /v1/workflows/{id}", func(*http.Request, []byte) any {
		return object{"workflow": object{"id": workflowID, "slug": "refunds"}}
	})
	answer("GET /v1/runs/{id}", func(*http.Request, []byte) any {
		if f.detail != nil {
			return f.detail
		}
		return object{"run": object{"id": runID, "origin": object{"kind": "api_key", "id": threadID}, "end_user_id": nil}}
	})
	answer("POST /v1/approvals/{id}/decision", func(_ *http.Request, body []byte) any {
		var d decision
		if err := json.Unmarshal(body, &d); err != nil {
			t.Error(err)
		}
		status := outcomes[d.Action]
		if d.Feedback == "half" {
			status = "pending"
		}
		return object{"status": status, "approvals_so_far": 1}
	})
	answer("POST /v1/approvals/bulk-decision", func(_ *http.Request, body []byte) any {
		var b struct {
			IDs    []string
			Action string
		}
		if err := json.Unmarshal(body, &b); err != nil {
			t.Error(err)
		}
		results := []object{}
		for i, id := range b.IDs {
			switch i % 3 {
			case 0:
				results = append(results, object{"id": id, "ok": true, "terminal": outcomes[b.Action]})
			case 1:
				results = append(results, object{"id": id, "ok": true})
			default:
				results = append(results, object{"id": id, "ok": false, "error": object{"code": "ALREADY_DECIDED", "detail": "It is decided."}})
			}
		}
		return object{"results": results}
	})
	answer("GET /v1/agents/{id}/tools/explain", func(r *http.Request, _ []byte) any {
		return object{"tool": "crm." + r.URL.Query().Get("tool"), "source": "mcp", "verdict": "gate", "why": "a policy asks for it", "grant_id": firstID, "connection_id": nil,
			"approval": object{"risk": "high", "required_approvals": 2, "approver_role": "admin", "sla_minutes": 90.5, "escalate_to_role": "owner", "on_timeout": "reject",
				"policy": object{"id": secondID, "name": "money", "kind": "policy"}},
			"steps": []object{{"what": "manifest", "pattern": "crm.*", "matched": true, "decided": false},
				{"what": "grant", "id": firstID, "pattern": "*", "matched": true, "decided": true, "note": "tenant-wide"}}}
	})
	answer("POST /v1/threads", func(*http.Request, []byte) any { return object{"id": threadID} })
	answer("POST /v1/threads/{id}/messages", func(*http.Request, []byte) any { return object{"run_id": runID, "message_id": firstID} })
	mux.HandleFunc("GET /v1/runs/{id}/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for n := 1; ; n++ {
			select {
			case data := <-f.frames:
				kind, _, _ := strings.Cut(strings.TrimPrefix(data, `{"type":"`), `"`)
				if kind == "cut" {
					return
				}
				if kind == "heartbeat" {
					fmt.Fprintf(w, "event: heartbeat\ndata: %s\n\n", data)
				} else {
					fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", kind, n, data)
				}
				w.(http.Flusher).Flush()
				if kind == "run.completed" || kind == "run.failed" {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	t.Setenv("SVC_URL", f.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	return f
}

// pending puts an approval into the service.
func (f *fakeAPI) pending(id, tool, args string) object {
	a := object{"id": id, "run_id": runID, "agent_id": agentID, "status": "pending", "risk": "high", "assignee_role": "admin", "required_approvals": 2, "approvals_so_far": 1,
		"requested_action": object{"tool": tool, "args": json.RawMessage(args)}, "reasoning_summary": "The customer asked for it.",
		"decisions":  []object{{"principal": "user:u1", "action": "approve", "feedback": "fine with me"}},
		"expires_at": time.Now().Add(90*time.Minute + 30*time.Second)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.approvals[id] = a
	return a
}

func (f *fakeAPI) refuses(method, path, code, detail string, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if code == "" {
		delete(f.refuse, method+" "+path)
		return
	}
	f.refuse[method+" "+path] = object{"status": status, "code": code, "title": "T", "detail": detail}
}

// took answers the requests so far and forgets them.
func (f *fakeAPI) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// svc runs a command line in this process.
func svc(t *testing.T, in io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(within(t, time.Minute), args, in, &out, &errs)
	return out.String(), errs.String(), code
}

func TestApprovalsLs(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", "{ \"amount\": 5,\n \"to\": \"a\u202eb\" }")
	late := f.pending(secondID, "x", `{}`)
	late["expires_at"], late["decisions"], late["reasoning_summary"], late["approvals_so_far"] = time.Now().Add(-time.Second), []object{}, "", 0
	done := f.pending(runID, "done.tool", `{}`)
	done["status"] = "approved"

	out, stderr, code := svc(t, nil, "approvals", "ls")
	want := `APPROVAL  RISK  LEFT     TOOL        ASSIGNEE  LEDGER
00000002  high  overdue  x           admin     0/2
    args      {}
00000001  high  1h30m    crm.refund  admin     1/2
    args      {"amount":5,"to":"a\u202eb"}
    reasoning The customer asked for it.
    decided   user:u1: approve, fine with me
`
	if code != 0 || stderr != "" || out != want {
		t.Errorf("code %d %s\n%s\nwant\n%s", code, stderr, out, want)
	}
	if out, _, _ := svc(t, nil, "approvals", "ls", "--status", "all"); !strings.Contains(out, "done.tool") || !strings.Contains(out, "  approved  ") {
		t.Errorf("all: %s", out)
	}
	f.took()

	out, _, code = svc(t, nil, "approvals", "ls", "--json", "--status", "expired", "--run", runID, "--agent", "helper", "--risk", "high")
	if code != 0 || strings.Join(strings.Fields(out), "") != `{"items":[]}` {
		t.Errorf("code %d %s", code, out)
	}
	if asked := f.took(); asked[1] != "GET /v1/approvals?agent_id="+agentID+"&limit=100&risk=high&run_id="+runID+"&status=expired" {
		t.Errorf("asked %v", asked)
	}
	svc(t, nil, "approvals", "ls", "--agent", agentID)
	if asked := f.took(); len(asked) != 1 || asked[0] != "GET /v1/approvals?agent_id="+agentID+"&limit=100&status=pending" {
		t.Errorf("asked %v", asked)
	}
	if out, errs, code := svc(t, nil, "approvals", "ls", "--status", "expired"); code != 0 || out != "" || errs != "no approvals fit these filters\n" {
		t.Errorf("none: code %d %s%s", code, out, errs)
	}
	if out, errs, _ := svc(t, nil, "approvals", "ls", "--limit", "1"); errs != "there are more: --limit 10\n" || strings.Count(out, "    args ") != 1 {
		t.Errorf("one of two: %s", out)
	}
	if _, stderr, code := svc(t, nil, "approvals", "ls", "--limit", "0"); code != 2 || !strings.Contains(stderr, "--limit") {
		t.Errorf("none: code %d %s", code, stderr)
	}
}

func TestTimeLeft(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "overdue", 0: "overdue", 1500 * time.Millisecond: "1s", 61 * time.Second: "1m", 3*time.Hour + 5*time.Minute: "3h05m",
		47*time.Hour + 59*time.Minute: "47h59m", 48 * time.Hour: "2d",
	} {
		if got := timeLeft(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

func TestDecisions(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":5}`)
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte("{\"amount\":7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := f.pending(doneID, "crm.refund", `{"amount":6}`)
	done["status"], done["decided_at"] = "approved", "2030-01-02T03:04:05Z"
	decide := func(id, body string) []string { return []string{"POST /v1/approvals/" + id + "/decision " + body} }
	found := func(asked ...string) []string { return append([]string{"GET /v1/approvals?limit=100"}, asked...) }
	const decidedSaid = "svc: ALREADY_DECIDED: the approval 00000003 of crm.refund is decided: approved at 2030-01-02T03:04:05Z; approve by user:u1, fine with me"
	for name, row := range map[string]struct {
		args        []string
		in          string
		code        int
		asked       []string
		out, stderr string
	}{
		"approve":                    {[]string{"approve", firstID}, "", 0, decide(firstID, `{"action":"approve"}`), "00000001  approved\n", ""},
		"an id in capitals":          {[]string{"approve", strings.ToUpper(firstID)}, "", 0, decide(firstID, `{"action":"approve"}`), "00000001  approved\n", ""},
		"approve, more are required": {[]string{"approve", firstID, "--feedback", "half"}, "", 0, decide(firstID, `{"action":"approve","feedback":"half"}`), "00000001  pending, 1 so far\n", ""},
		"reject with feedback":       {[]string{"reject", firstID, "--feedback", "too much"}, "", 0, decide(firstID, `{"action":"reject","feedback":"too much"}`), "00000001  rejected\n", ""},
		"reject without":             {[]string{"reject", firstID}, "", 0, decide(firstID, `{"action":"reject"}`), "00000001  rejected\n", ""},
		"respond":                    {[]string{"respond", firstID, "--feedback", "ask me later"}, "", 0, decide(firstID, `{"action":"respond","feedback":"ask me later"}`), "00000001  responded\n", ""},
		"a short id":                 {[]string{"approve", "00000001"}, "", 0, found(decide(firstID, `{"action":"approve"}`)...), "00000001  approved\n", ""},
		"more of the end":            {[]string{"approve", "8000-000000000001"}, "", 0, found(decide(firstID, `{"action":"approve"}`)...), "00000001  approved\n", ""},
		"too short":                  {[]string{"approve", "0"}, "", 1, found(), "", `svc: "0" is too short: give the last 8 digits of the approval's id, or more`},
		"too short, with candidates": {[]string{"approve", "01"}, "", 1, found(), "", `svc: "01" is too short: give the last 8 digits of the approval's id, or more` + "\n  00000001  crm.refund  pending"},
		"a beginning": {[]string{"approve", "0193b111"}, "", 1, found(), "",
			`svc: no approval's id ends with "0193b111"; the beginning of an id names nothing` + "\n  00000001  crm.refund  pending"},
		"an end that none has":    {[]string{"approve", "ffffffff"}, "", 1, found(), "", `svc: no approval's id ends with "ffffffff"`},
		"an empty id":             {[]string{"approve", ""}, "", 1, nil, "", `svc: "" is not a valid approval id: give the full id or its last 8 hex digits`},
		"no id at all":            {[]string{"approve", "crm.refund"}, "", 1, nil, "", `svc: "crm.refund" is not a valid approval id: give the full id or its last 8 hex digits`},
		"one is wrong, none goes": {[]string{"approve", "00000001", "0"}, "", 1, found(), "", `svc: "0" is too short: give the last 8 digits of the approval's id, or more`},
		"a decided one":           {[]string{"approve", "00000003"}, "", 1, found(), "", decidedSaid},
		"a decided one, in full":  {[]string{"reject", doneID}, "", 1, nil, "", decidedSaid},
		"edit of a decided one":   {[]string{"edit", doneID, "--args", "{}"}, "", 1, nil, "", decidedSaid},
		"two are one bulk decision": {[]string{"reject", firstID, "00000002", firstID, "--feedback", "no"}, "", 0,
			found(`POST /v1/approvals/bulk-decision {"ids":["` + firstID + `","` + secondID + `"],"action":"reject","feedback":"no"}`),
			"00000001  rejected\n00000002  waits for further approvals\n", ""},
		"some of a bulk decision fail": {[]string{"approve", firstID, secondID, doneID, runID}, "", 1,
			[]string{`POST /v1/approvals/bulk-decision {"ids":["` + firstID + `","` + secondID + `"],"action":"approve"}`},
			"00000003  " + strings.TrimPrefix(decidedSaid, "svc: ") + "\n000000c1  NOT_FOUND: There is no such approval.\n00000001  approved\n00000002  waits for further approvals\n", "svc: 2 of 4 could not be decided"},
		"all of a bulk decision are decided": {[]string{"approve", doneID, runID}, "", 1, nil,
			"00000003  " + strings.TrimPrefix(decidedSaid, "svc: ") + "\n000000c1  NOT_FOUND: There is no such approval.\n", "svc: 2 of 2 could not be decided"},
		"edit":             {[]string{"edit", firstID, "--args", `{"amount": 12345678901234567890.10}`}, "", 0, decide(firstID, `{"action":"edit","edited_args":{"amount":12345678901234567890.10}}`), "00000001  edited\n", ""},
		"edit from a file": {[]string{"edit", "00000001", "--args", "@" + file}, "", 0, found(decide(firstID, `{"action":"edit","edited_args":{"amount":7}}`)...), "00000001  edited\n", ""},
		"edit from the input": {[]string{"edit", firstID, "--args", "-", "--feedback", "less"}, "{\"amount\": 1}\n", 0,
			decide(firstID, `{"action":"edit","edited_args":{"amount":1},"feedback":"less"}`), "00000001  edited\n", ""},
		"edit without arguments":   {[]string{"edit", firstID}, "", 2, nil, "", `svc: required flag(s) "args" not set`},
		"edit with no JSON":        {[]string{"edit", firstID, "--yes", "--args", "amount=7"}, "", 2, nil, "", "svc: --args: must be a JSON object"},
		"edit with no object":      {[]string{"edit", firstID, "--yes", "--args", "[1]"}, "", 2, nil, "", "svc: --args: must be a JSON object"},
		"edit with a missing file": {[]string{"edit", firstID, "--yes", "--args", "@/none"}, "", 2, nil, "", "svc: --args: open /none: no such file or directory"},
		"respond without feedback": {[]string{"respond", firstID}, "", 2, nil, "", `svc: required flag(s) "feedback" not set`},
		"respond, empty feedback":  {[]string{"respond", firstID, "--feedback", ""}, "", 2, nil, "", "svc: --feedback: must not be empty: it is the answer that the model gets"},
		"approve nothing":          {[]string{"approve"}, "", 2, nil, "", "svc: requires at least 1 arg(s), only received 0"},
		"no such command":          {[]string{"promote", firstID}, "", 2, nil, "", `svc: unknown command "promote" for "svc approvals"; see svc approvals --help`},
		"edit takes one id":        {[]string{"edit", firstID, secondID, "--args", "{}"}, "", 2, nil, "", "svc: accepts 1 arg(s), received 2"},
	} {
		t.Run(name, func(t *testing.T) {
			f.took()
			args := append([]string{"approvals"}, row.args...)
			if row.code != 2 && !slices.Contains(args, "--yes") {
				args = append(args, "--yes")
			}
			out, stderr, code := svc(t, strings.NewReader(row.in), args...)
			shown, said, is := strings.Cut(stderr, "svc: ") // what is decided comes before
			if stderr = ""; is {
				stderr = "svc: " + strings.TrimSpace(said)
			}
			if row.asked != nil && strings.HasPrefix(row.asked[len(row.asked)-1], "POST ") != strings.Contains(shown, "crm.refund, high risk") {
				t.Errorf("shown: %s", shown)
			}
			if code != row.code || out != row.out || stderr != row.stderr {
				t.Errorf("code %d, want %d\nout  %q\nwant %q\nerr  %q\nwant %q", code, row.code, out, row.out, stderr, row.stderr)
			}
			asked := slices.DeleteFunc(f.took(), func(line string) bool {
				return strings.HasPrefix(line, "GET ") && !strings.HasPrefix(line, "GET /v1/approvals?")
			})
			if !slices.Equal(asked, row.asked) {
				t.Errorf("asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(row.asked, "\n"))
			}
		})
	}
	t.Run("without a terminal --yes is required", func(t *testing.T) {
		for _, args := range [][]string{{"approve", firstID}, {"reject", firstID, secondID}, {"respond", firstID, "--feedback", "x"}, {"edit", firstID, "--args", "{}"}, {"edit", firstID, "--args", "-"}} {
			f.took()
			out, stderr, code := svc(t, strings.NewReader("y\ny\n"), append([]string{"approvals"}, args...)...)
			if asked := f.took(); code != 2 || out != "" || !strings.Contains(stderr, "--yes: is required") || len(asked) > 0 {
				t.Errorf("%v: code %d %q %q asked %v", args, code, out, stderr, asked)
			}
		}
	})
	t.Run("what is decided is shown", func(t *testing.T) {
		_, stderr, _ := svc(t, nil, "approvals", "approve", "00000001", "--yes")
		want := `00000001  crm.refund, high risk, 1/2 of role admin so far, 1h30m left
    {
      "amount": 5
    }
    asked by  the agent helper in run 000000c1, begun by api key 000000b1
    because   The customer asked for it.
    decided   user:u1: approve, fine with me
`
		if stderr != want {
			t.Errorf("%s\nwant\n%s", stderr, want)
		}
	})

	t.Run("JSON", func(t *testing.T) {
		var one Decided
		out, _, code := svc(t, nil, "approvals", "approve", firstID, "--json", "--yes")
		if json.Unmarshal([]byte(out), &one) != nil || code != 0 || one.Status != "approved" || one.SoFar != 1 {
			t.Errorf("code %d %s", code, out)
		}
		var bulk struct {
			Results []struct {
				ID    string
				OK    bool
				Error *struct{ Code string }
			}
		}
		out, _, code = svc(t, nil, "approvals", "approve", firstID, secondID, doneID, "--json", "--yes")
		if json.Unmarshal([]byte(out), &bulk) != nil || code != 1 || len(bulk.Results) != 3 || !bulk.Results[1].OK || bulk.Results[0].Error.Code != "ALREADY_DECIDED" {
			t.Errorf("code %d %s", code, out)
		}
	})
	t.Run("more than a bulk decision takes", func(t *testing.T) {
		args := []string{"approvals", "approve", "--yes"}
		for i := range 2*maxBulk + 1 {
			f.pending(fmt.Sprintf("0193c000-0000-7000-8000-%012d", i+100), "crm.refund", "{}")
			args = append(args, fmt.Sprintf("%08d", i+100))
		}
		f.took()
		out, _, _ := svc(t, nil, args...)
		if asked := slices.DeleteFunc(f.took(), func(line string) bool { return strings.HasPrefix(line, "GET ") }); len(asked) != 3 || strings.Count(asked[0], "0193c000") != maxBulk || strings.Count(asked[2], "0193c000") != 1 || strings.Count(out, "\n") != 2*maxBulk+1 {
			t.Errorf("%d calls, %d lines", len(asked), strings.Count(out, "\n"))
		}
	})
	for code, detail := range map[string]string{
		"ALREADY_DECIDED": "It is decided.", "FORBIDDEN": "It is assigned to owner.", "NOT_FOUND": "There is no such approval.", "INVALID_ARGS": "amount: must be a number",
	} {
		t.Run("refused with "+code, func(t *testing.T) {
			f.refuses("POST", "/v1/approvals/"+firstID+"/decision", code, detail, 409)
			out, stderr, exit := svc(t, nil, "approvals", "approve", firstID, "--yes")
			if exit != 1 || out != "" || !strings.HasSuffix(stderr, "\nsvc: "+code+": "+detail+"\n") {
				t.Errorf("code %d %q %q", exit, out, stderr)
			}
		})
	}
}

func TestDifferences(t *testing.T) {
	for name, row := range map[string]struct {
		requested, edited string
		want              []string
	}{
		"the same":            {`{"a":1,"b":[true,null]}`, `{"b":[true,null],"a":1}`, []string{"(the same arguments)"}},
		"changed":             {`{"a":1}`, `{"a":2}`, []string{"~ a: 1 -> 2"}},
		"a number's text":     {`{"a":1.0}`, `{"a":1.00}`, []string{"~ a: 1.0 -> 1.00"}},
		"added and removed":   {`{"a":1}`, `{"b":"x"}`, []string{`- a: 1`, `+ b: "x"`}},
		"deep":                {`{"c":{"items":[{"n":1},{"n":2}]}}`, `{"c":{"items":[{"n":1},{"n":3},{}]}}`, []string{`~ c.items[1].n: 2 -> 3`, `+ c.items[2]: {}`}},
		"a shorter list":      {`{"l":[1,2]}`, `{"l":[1]}`, []string{`- l[1]: 2`}},
		"another kind":        {`{"l":[1]}`, `{"l":{"x":1}}`, []string{`~ l: [1] -> {"x":1}`}},
		"invisible":           {`{"a":"x"}`, "{\"a\":\"x\u200b<\",\"\u202e\":1}", []string{`~ a: "x" -> "x\u200b<"`, `+ \u202e: 1`}},
		"redacted is kept":    {`{"a":"[redacted]","b":1}`, `{"a":"[redacted]","b":2}`, []string{"~ b: 1 -> 2"}},
		"nothing asked for":   {``, `{"a":1}`, []string{`~ (all): "" -> {"a":1}`}},
		"the key stays":       {`{"a":1,"idempotency_key":"k"}`, `{"a":2}`, []string{"~ a: 1 -> 2"}},
		"null is not missing": {`{"a":null}`, `{}`, []string{"- a: null"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := differences(json.RawMessage(row.requested), json.RawMessage(row.edited)); !slices.Equal(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// The latest edit's arguments run: who decides after an edit is shown those, and what each edit changed.
func TestAnEditIsShownToTheNextApprover(t *testing.T) {
	f := newFakeAPI(t)
	edited := func(principal, args string) object {
		return object{"principal": principal, "action": "edit", "feedback": "less\u202e", "edited_args": json.RawMessage(args)}
	}
	call := f.pending(firstID, "crm.refund", `{"amount":900,"idempotency_key":"k1"}`)
	call["decisions"] = []object{edited("user:u1", `{"amount":700}`), edited("user:u2", `{"amount":5,"to":"a\u202eb"}`), {"principal": "user:u3", "action": "approve", "feedback": nil, "edited_args": nil}}
	task := f.pending(secondID, "workflow:human_task", `{"title":"Who?"}`)
	task["decisions"] = []object{edited("user:u1", `{"name":"Ann"}`)}

	const shown = `    {
      "amount": 5,
      "to": "a\u202eb",
      "idempotency_key": "k1"
    }
`
	const ledger = `    decided   user:u1: edit, less\u202e
              ~ amount: 900 -> 700
    decided   user:u2: edit, less\u202e
              ~ amount: 700 -> 5
              + to: "a\u202eb"
    decided   user:u3: approve
`
	for _, args := range [][]string{{"get", firstID}, {"approve", firstID, "--yes"}, {"edit", firstID, "--yes", "--args", `{"amount":4,"to":"a"}`}} {
		out, stderr, code := svc(t, nil, append([]string{"approvals"}, args...)...)
		if said := out + stderr; code != 0 || !strings.Contains(said, shown) || !strings.Contains(said, ledger) {
			t.Errorf("%v: code %d\n%s", args, code, said)
		}
		if changes := "    ~ amount: 5 -> 4\n"; args[0] == "edit" && !strings.Contains(stderr, changes) {
			t.Errorf("an edit is compared with what would run:\n%s", stderr)
		}
	}
	out, _, _ := svc(t, nil, "approvals", "ls")
	if !strings.Contains(out, `    args      {"amount":5,"to":"a\u202eb","idempotency_key":"k1"}`+"\n") || !strings.Contains(out, ledger) || !strings.Contains(out, `    args      {"title":"Who?"}`+"\n"+`    answer    {"name":"Ann"}`+"\n") {
		t.Errorf("ls:\n%s", out)
	}
	if out, _, _ := svc(t, nil, "approvals", "get", secondID); !strings.Contains(out, "    answer\n    {\n      \"name\": \"Ann\"\n    }\n") || !strings.Contains(out, `              + name: "Ann"`+"\n") {
		t.Errorf("a task:\n%s", out)
	}
}

// The form of a human task is shown field by field, and an answer to it is a change of nothing.
func TestFormsOfHumanTasks(t *testing.T) {
	f := newFakeAPI(t)
	task := f.pending(firstID, "workflow:human_task", `{"title":"Who?","input":{"order":7}}`)
	action := task["requested_action"].(object)
	action["schema"] = json.RawMessage(`{"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "description": "who pays\u202e"}, "size": {"enum": ["s", 7]}, "any": {}, "both": {"type": ["number", "null"], "title": "Both"}}}`)
	const form = `    form      name: string, required (who pays\u202e)
              size: one of ["s",7]
              any
              both: ["number","null"] (Both)
`
	out, stderr, code := svc(t, nil, "approvals", "get", firstID)
	if code != 0 || !strings.Contains(out, form+"    asked by") {
		t.Errorf("get: code %d %s\n%s", code, stderr, out)
	}
	_, stderr, code = svc(t, nil, "approvals", "edit", firstID, "--yes", "--args", `{"name": "Ann"}`)
	if code != 0 || !strings.Contains(stderr, form) || !strings.Contains(stderr, `    + name: "Ann"`+"\n") || strings.Contains(stderr, "- title") {
		t.Errorf("edit: code %d\n%s", code, stderr)
	}
	for schema, want := range map[string]string{
		`null`: "", `{"type": "object"}`: `    form      {"type":"object"}` + "\n", `{"properties": []}`: `    form      {"properties":[]}` + "\n",
	} {
		action["schema"] = json.RawMessage(schema)
		if out, stderr, code := svc(t, nil, "approvals", "get", firstID); code != 0 || strings.Contains(out, "    form") != (want != "") || !strings.Contains(out, want) {
			t.Errorf("%s: code %d %s\n%s", schema, code, stderr, out)
		}
	}
	call := f.pending(secondID, "crm.refund", `{"amount":5}`)
	call["requested_action"].(object)["schema"] = json.RawMessage(`{"properties": {"amount": {"type": "number"}}}`)
	if out, _, _ := svc(t, nil, "approvals", "get", secondID); strings.Contains(out, "    form") {
		t.Errorf("a call has a form:\n%s", out)
	}
}

func TestGrantsExplain(t *testing.T) {
	f := newFakeAPI(t)
	out, stderr, code := svc(t, nil, "grants", "explain", "helper", "refund")
	want := `crm.refund may be called once it is approved: a policy asks for it.
grant       ` + firstID + `
approval    high risk, 2 by admin within 90.5 minutes, escalated to owner, on timeout reject; asked for by the policy money

WHAT      ID                                    PATTERN  MATCHED  DECIDED  NOTE
manifest  -                                     crm.*    yes      no       
grant     ` + firstID + `  *        yes      yes      tenant-wide
`
	if code != 0 || stderr != "" || out != want {
		t.Errorf("code %d %s\n%s\nwant\n%s", code, stderr, out, want)
	}
	f.took()
	out, _, code = svc(t, nil, "grants", "explain", agentID, "a b&c", "--json")
	var raw struct{ Tool, Verdict string }
	if code != 0 || json.Unmarshal([]byte(out), &raw) != nil || raw.Tool != "crm.a b&c" || raw.Verdict != "gate" {
		t.Errorf("code %d %s", code, out)
	}
	if asked := f.took(); len(asked) != 1 || asked[0] != "GET /v1/agents/"+agentID+"/tools/explain?tool=a+b%26c" {
		t.Errorf("asked %v", asked)
	}
	if _, stderr, code := svc(t, nil, "grants", "explain", "nobody", "x"); code != 1 || !strings.Contains(stderr, `no agent with the slug "nobody"`) {
		t.Errorf("code %d %s", code, stderr)
	}
	for _, args := range [][]string{{"grants", "explain", "helper"}, {"grants", "bogus"}} {
		if _, _, code := svc(t, nil, args...); code != 2 {
			t.Errorf("%v: code %d", args, code)
		}
	}
}
