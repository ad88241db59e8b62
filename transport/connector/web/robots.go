package web

import (
	"bufio"
	"bytes"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// agent is the crawler's product token in robots.txt.
const agent = "svc-crawler"

const (
	maxRobots = 512 << 10
	maxRules  = 2000
	maxDelay  = 5 * time.Second // the longest crawl delay that is kept
)

// robots are the rules of a robots.txt for this crawler (RFC 9309). The zero value allows
// everything.
type robots struct {
	rules    []rule
	delay    time.Duration
	sitemaps []string
}

// rule is a pattern, cut at its stars. A page is compared with many of them.
type rule struct {
	length int // of the pattern, in bytes
	parts  []string
	whole  bool // the pattern ends with $
	allow  bool
}

func newRule(pattern string, allow bool) rule {
	r := rule{length: len(pattern), allow: allow}
	pattern, r.whole = strings.CutSuffix(pattern, "$")
	r.parts = strings.Split(pattern, "*")
	return r
}

// parseRobots reads at most 512 KiB. The groups of our own name count; without one, those of *.
func parseRobots(text []byte) robots {
	text = bytes.TrimPrefix(text[:min(len(text), maxRobots)], []byte("\xef\xbb\xbf"))
	var own, all robots
	var sitemaps []string
	hasOwn, mine, general, agents := false, false, false, false
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(make([]byte, 0, 4096), 64<<10)
	lines.Split(anyLine)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "user-agent":
			if !agents { // a new group
				mine, general = false, false
			}
			agents = true
			product, _, _ := strings.Cut(strings.ToLower(value), "/")
			if product == agent {
				mine, hasOwn = true, true
			}
			general = general || value == "*"
		case "allow", "disallow":
			agents = false
			if value == "" {
				continue
			}
			r := newRule(normalPath(value), strings.EqualFold(strings.TrimSpace(name), "allow"))
			if mine && len(own.rules) < maxRules {
				own.rules = append(own.rules, r)
			}
			if general && len(all.rules) < maxRules {
				all.rules = append(all.rules, r)
			}
		case "crawl-delay":
			agents = false
			if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds > 0 {
				d := min(time.Duration(min(seconds, 3600)*float64(time.Second)), maxDelay)
				if mine {
					own.delay = d
				}
				if general {
					all.delay = d
				}
			}
		case "sitemap":
			if len(sitemaps) < maxSitemaps {
				sitemaps = append(sitemaps, value)
			}
		}
	}
	if !hasOwn {
		own = all
	}
	own.sitemaps = sitemaps
	return own
}

// anyLine splits at \n, \r\n and \r.
func anyLine(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// normalPath writes a path with the fewest escapes, so that rules and URLs compare.
func normalPath(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// allows reports whether a page may be read: the longest matching rule decides, an allow at a
// tie.
func (r robots) allows(u *url.URL) bool {
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	path = normalPath(path)
	best, allowed := -1, true
	for i := range r.rules {
		if one := &r.rules[i]; one.length >= best && (one.length > best || one.allow) && one.matches(path) {
			best, allowed = one.length, one.allow
		}
	}
	return allowed
}

// matches reports whether the pattern matches the beginning of a path. It takes time in proportion to
// their lengths.
func (r *rule) matches(path string) bool {
	rest, ok := strings.CutPrefix(path, r.parts[0])
	if !ok {
		return false
	}
	last := len(r.parts) - 1
	for i, part := range r.parts[1:] {
		if r.whole && i == last-1 {
			return strings.HasSuffix(rest, part)
		}
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return !r.whole || rest == ""
}
