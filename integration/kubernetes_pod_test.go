package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A kubePod is a pod that kubectl creates and deletes.
type kubePod struct {
	*kubernetes
	t     *testing.T
	class string // its RuntimeClass
	name  string
	dir   string // of the host, for its script: see hostFolder
}

// kubeTimeout is for commands of kubectl that wait: they end before the test ends them.
var kubeTimeout = (patience / 2).String()

// kubeClasses are the RuntimeClasses that each case is run with.
var kubeClasses = []string{"sandbox-runtime", "runc"}

// TestKubernetes has the cases with the binary under test, and with runc for comparison.
func TestKubernetes(t *testing.T) {
	leavesNothing(t)
	need(t, peers(), kubernetesSetup(), kmsg())
	k := startKubernetes(t)
	k.warmUp(t)
	t.Run("features", func(t *testing.T) { testRuntimeHandlers(t, k) })
	var table strings.Builder
	for i, test := range kubernetesCases {
		for _, class := range kubeClasses {
			ran := false
			began := time.Now()
			ok := t.Run(test.name+"/"+class, func(t *testing.T) {
				ran = true
				leavesNothing(t)
				test.test(k.pod(t, class, fmt.Sprintf("case%d-%s", i+1, class)))
			})
			if word := map[bool]string{true: "ok", false: "FAILED"}[ok]; ran {
				fmt.Fprintf(&table, "\n%-35s %-15s %-6s %4.1f s", test.name, class, word, time.Since(began).Seconds())
			}
		}
	}
	t.Log(table.String())
}

// warmUp runs first pods: the link and the cgroups that all pods share are there from then on.
func (k *kubernetes) warmUp(t *testing.T) {
	t.Helper()
	before := processes(t)
	for name, resources := range map[string]string{"besteffort": "{}", "burstable": "{requests: {memory: 1Mi}}"} {
		p := k.pod(t, kubeClasses[0], name)
		p.create(p.main("exec sleep 1000", "resources: "+resources))
		p.waitFor("{.status.phase}", "Running")
		p.remove()
	}
	keepersGo(t, before)
}

// pod is a pod that has not been created. The test's end removes it.
func (k *kubernetes) pod(t *testing.T, class, name string) *kubePod {
	p := &kubePod{k, t, class, name, ""}
	t.Cleanup(p.remove)
	return p
}

// remove deletes the pod, and what the kubelet would collect a minute later.
func (p *kubePod) remove() {
	p.t.Helper()
	if p.t.Failed() {
		p.t.Logf("%s", run(p.t, p.kubectl("describe", "pod", p.name)).stdout)
	}
	p.must(p.t, "delete", "pod", p.name, "--now", "--ignore-not-found", "--timeout", kubeTimeout)
	p.removePods(p.t)
}

// create creates the pod from the rest of its specification.
func (p *kubePod) create(spec string) {
	p.t.Helper()
	p.apply(p.t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: node
  runtimeClassName: %s%s
`, p.name, p.class, strings.ReplaceAll("\n"+strings.TrimSpace(spec), "\n", "\n  ")))
}

// main is a list of one container that runs a script, with more fields.
func (p *kubePod) main(script string, fields ...string) string {
	return "containers:\n" + p.container("main", script, fields...)
}

func (p *kubePod) container(name, script string, fields ...string) string {
	lines := []string{"- name: " + name, "image: " + criImage, "command: [sh, -c, " + strconv.Quote(script) + "]"}
	lines = append(lines, fields...)
	return strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n  ") + "\n"
}

// hostFolder is a folder of the host as the pod's volume "host", mounted at /host by the
// field that it returns.
func (p *kubePod) hostFolder() (volumes, field string) {
	p.dir = p.t.TempDir()
	return "volumes: [{name: host, hostPath: {path: " + p.dir + "}}]\n", "volumeMounts: [{name: host, mountPath: /host}]"
}

// wrote is the content of a file in the host's folder.
func (p *kubePod) wrote(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Error(err)
	}
	return string(text)
}

// field is a part of the pod, by a template of kubectl.
func (p *kubePod) field(template string) string {
	p.t.Helper()
	return p.must(p.t, "get", "pod", p.name, "--output", "jsonpath="+template)
}

// ended is how the first container ended.
func (p *kubePod) ended() string {
	p.t.Helper()
	const state = ".status.containerStatuses[0].state.terminated"
	return p.field("{" + state + ".exitCode} {" + state + ".reason}")
}

func (p *kubePod) waitFor(template, value string) {
	p.t.Helper()
	p.must(p.t, "wait", "--for=jsonpath="+template+"="+value, "--timeout", kubeTimeout, "pod/"+p.name)
}

func (p *kubePod) logs(flags ...string) string {
	p.t.Helper()
	return p.must(p.t, append([]string{"logs", p.name}, flags...)...)
}

// prints creates the pod with a script that must succeed, and returns the script's output. The
// script lives on.
func (p *kubePod) prints(script, rest string, fields ...string) string {
	p.t.Helper()
	p.create(p.main(livesOn("exec 2>&1; "+script), fields...) + rest)
	p.waitFor("{.status.phase}", "Running")
	text, status := told(p.t, func() string { return p.logs() })
	if status != 0 {
		p.t.Errorf("%s: status %d", script, status)
	}
	return text
}

// exec is the outcome of a script in the first container.
func (p *kubePod) exec(script string, flags ...string) result {
	p.t.Helper()
	return run(p.t, p.kubectl(append(append([]string{"exec", p.name}, flags...), "--", "sh", "-c", script)...))
}
