package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"agentsvc/cmd/svc/cli"
)

// clientVariables are read by the commands that call the API (cmd/svc/client), and by
// test builds.
var clientVariables = []string{"SVC_URL", "SVC_API_KEY", "SVC_TENANT", "SVC_FAILPOINT", "SVC_PLANTED"}

// injected are variables that a cluster scheduler sets for a service named svc.
var injected = regexp.MustCompile(`^SVC_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$`)

// setByHand reports whether a variable that a scheduler might have set was set by hand. A
// scheduler's SVC_PORT is a URL.
func setByHand(name, value string) bool {
	return name == "SVC_PORT" && !strings.Contains(value, "://")
}

// strangers returns a sentence for each SVC_ variable of an environment that
// nothing reads, with the name that was probably meant.
func strangers(environ []string) []string {
	known := slices.Clone(clientVariables)
	for _, s := range (&Config{}).settings() {
		known = append(known, s.env)
	}
	var all []string
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "SVC_") || slices.Contains(known, name) || injected.MatchString(name) && !setByHand(name, value) {
			continue
		}
		text := name + " is not known"
		if near := cli.Nearest(name, known); near != "" {
			text += fmt.Sprintf("; did you mean %s?", near)
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}
