// SPDX-License-Identifier: Apache-2.0

package shipping

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var helpOfFlag = regexp.MustCompile(`(?m)^  -([a-z-]+).*\n\s+\t.*?(?: \(default "?([^")]*)"?\))?$`)

// flagsOf returns the flags that a service's help lists, with their defaults.
func flagsOf(help string) map[string]string {
	flags := map[string]string{}
	for _, flag := range helpOfFlag.FindAllStringSubmatch(help, -1) {
		flags[flag[1]] = flag[2]
	}
	return flags
}

// documentedFlags returns the flags of the service in the README's tables, with
// their defaults. A default in words alone stands for none.
func documentedFlags(t testing.TB, service string) map[string]string {
	t.Helper()
	_, section, found := strings.Cut(readme(t), "\n## Flags\n")
	require.True(t, found)
	section, _, found = strings.Cut(section, "\n## ")
	require.True(t, found)
	headings := []string{"All services have:", service + ":"}
	if service != "license-copier" {
		headings = append(headings, "The webhooks:")
	}
	flags := map[string]string{}
	heading := ""
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if strings.HasSuffix(line, ":") {
			heading = line
		}
		if !slices.Contains(headings, heading) || !strings.HasPrefix(line, "| `--") {
			continue
		}
		cells := strings.Split(line, "|")
		maps.Copy(flags, rowsFlags(cells[1], cells[2], service))
	}
	return flags
}

// rowsFlags reads a row: some flags, and as many defaults, for this service or for
// all.
func rowsFlags(names, defaults, service string) map[string]string {
	defaults, others, _ := strings.Cut(defaults, ";")
	if own, isOwn := strings.CutPrefix(strings.TrimSpace(others), service+" "); isOwn {
		defaults = own
	}
	values := slices.DeleteFunc(literal.FindAllString(defaults, -1), func(value string) bool {
		return strings.HasPrefix(value, "`$") // an environment variable that is not set
	})
	flags := map[string]string{}
	for i, name := range strings.Split(names, ", ") {
		value := ""
		if i < len(values) {
			value = strings.Trim(values[i], "`")
		}
		flags[strings.Trim(name, "` -")] = spelled(value)
	}
	return flags
}

// spelled returns a duration as the help spells it, and all else as it is.
func spelled(value string) string {
	if duration, err := time.ParseDuration(value); err == nil {
		return duration.String()
	}
	return value
}

// literal is a value in the README, and not a word.
var literal = regexp.MustCompile("`[^`]+`|[0-9]+|true")
