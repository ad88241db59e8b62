package main

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/cmd/svc/clitest"

	"github.com/spf13/cobra"
)

// everyCommand calls each with each command that a person may see.
func everyCommand(each func(cmd *cobra.Command)) {
	clitest.EachCommand(commandLine(nil, io.Discard, io.Discard), each)
}

// shellWords splits a line of a shell, as far as our examples need it.
func shellWords(line string) []string {
	var out []string
	for _, w := range regexp.MustCompile(`'[^']*'|[^\s']+`).FindAllString(line, -1) {
		out = append(out, strings.Trim(w, "'"))
	}
	return out
}

// Every help text has examples, and each names a command with flags and
// arguments that it takes.
func TestEveryCommandHasExamples(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	everyCommand(func(cmd *cobra.Command) {
		if cmd.Hidden { // of the service's own use
			return
		}
		used[cmd.CommandPath()] = true
		lines := examples[cmd.CommandPath()]
		if len(lines) == 0 {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		if !strings.Contains(cmd.UsageString(), "Examples:\n  ") {
			t.Errorf("%s does not show its examples", cmd.CommandPath())
		}
		for _, line := range lines {
			_, call, is := strings.Cut(strings.NewReplacer("<(", "", ")", "").Replace(line), "svc ")
			if !is {
				t.Errorf("%s: %q calls no svc", cmd.CommandPath(), line)
				continue
			}
			call, _, _ = strings.Cut(call, " | ")
			call, _, _ = strings.Cut(call, " > ")
			root := commandLine(nil, io.Discard, io.Discard)
			found, rest, err := root.Find(shellWords(call))
			if err != nil {
				t.Errorf("%q: %v", line, err)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
				continue
			}
			if found.Name() == "help" {
				continue
			}
			if err := found.ValidateArgs(found.Flags().Args()); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			if err := found.ValidateRequiredFlags(); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			if !strings.HasPrefix(found.CommandPath(), cmd.CommandPath()) && !slices.Contains([]string{"help", "version"}, cmd.Name()) && cmd.HasParent() {
				t.Errorf("%q is an example of %s", line, cmd.CommandPath())
			}
		}
	})
	for path := range examples {
		if !used[path] {
			t.Errorf("there is no %s", path)
		}
	}
}

// The same verbs everywhere, and the words that other tools have for them.
func TestVerbs(t *testing.T) {
	t.Parallel()
	root := commandLine(nil, io.Discard, io.Discard)
	for line, want := range map[string]string{
		"agents list": "svc agents ls", "agents show x": "svc agents get", "agents new": "svc agents create", "agents publish x": "svc agents publish",
		"threads list": "svc threads ls", "threads get x": "svc threads get", "runs start x": "svc runs start", "servers list": "svc servers ls", "servers test x": "svc servers test",
		"policies list": "svc policies ls", "approvals get x": "svc approvals get", "approvals watch": "svc approvals watch", "runs list": "svc runs ls",
		"end-users delete x": "svc end-users rm", "end-users remove x": "svc end-users rm", "triggers delete x": "svc triggers rm", "webhooks delete x": "svc webhooks rm",
		"embed-keys rm x": "svc embed-keys revoke", "embed-keys delete x": "svc embed-keys revoke", "tenant list": "svc tenant ls", "webhooks show x": "svc webhooks get",
	} {
		if found, _, err := root.Find(strings.Fields(line)); err != nil || found.CommandPath() != want {
			t.Errorf("%s is %v, %v", line, found.CommandPath(), err)
		}
	}
	everyCommand(func(cmd *cobra.Command) { // no word means two things
		seen := map[string]string{}
		for _, c := range cmd.Commands() {
			for _, name := range append([]string{c.Name()}, c.Aliases...) {
				if other := seen[name]; other != "" {
					t.Errorf("%s %s is %s and %s", cmd.CommandPath(), name, other, c.Name())
				}
				seen[name] = c.Name()
			}
		}
	})
}

func TestDidYouMean(t *testing.T) {
	for line, want := range map[string]string{
		"aprovals ls":          `unknown command "aprovals" for "svc"; did you mean "approvals"?`,
		"approvals aprove x":   `unknown command "aprove" for "svc approvals"; did you mean "approve"?`,
		"runs lst":             `unknown command "lst" for "svc runs"; did you mean "ls"?`,
		"bogus":                `unknown command "bogus" for "svc"; see svc --help`,
		"runs ls --statsu x":   "unknown flag: --statsu; did you mean --status?",
		"runs ls --jsn":        "unknown flag: --jsn; did you mean --json?",
		"runs ls --entirely=1": "unknown flag: --entirely",
	} {
		out, stderr, code := svc(t, nil, strings.Fields(line)...)
		if code != 2 || out != "" || stderr != "svc: "+want+"\n" {
			t.Errorf("%s: code %d %q %q, want %q", line, code, out, stderr, want)
		}
	}
}

// A node that seals with a key that another node does not know is refused: with several nodes each one knows the
// new key before the first one seals with it.
func TestTheHelpOfResealHasTheOrderOfSeveralNodes(t *testing.T) {
	out, _, _ := svc(t, nil, "reseal", "--help")
	_, several, _ := strings.Cut(strings.Join(strings.Fields(out), " "), "Several nodes:")
	known, exchanged := strings.Index(several, "with the new key in SVC_MASTER_KEY_PREVIOUS"), strings.Index(several, "with the two exchanged")
	if known < 0 || exchanged < known {
		t.Errorf("svc reseal --help does not say in which order several nodes get a new key:\n%s", out)
	}
}

func TestVersionFlag(t *testing.T) {
	out, _, code := svc(t, nil, "--version")
	if code != 0 || out != "svc "+version+"\n" {
		t.Errorf("code %d %q", code, out)
	}
}

// svc runs a command line in this process.
func svc(t *testing.T, in io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	code = execute(ctx, args, in, &out, &errs)
	return out.String(), errs.String(), code
}
