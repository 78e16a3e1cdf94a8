package integration

import (
	"strings"
	"testing"
)

// cgroupFile is a script that prints the first word of a file of the container's cgroup. The
// file has another name in each version of cgroups.
func cgroupFile(v1, v2 string) string {
	return "cat /sys/fs/cgroup/" + v1 + " 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/" + v2
}

var kubernetesCases = []struct {
	name string
	test func(*kubePod)
}{
	{"runs to its end with code and log", func(p *kubePod) {
		p.create(p.main("echo out; usleep 200000; exit 7") + "restartPolicy: Never")
		p.waitFor("{.status.phase}", "Failed")
		wantEqual(p.t, p.ended(), "7 Error")
		wantEqual(p.t, p.logs(), "out\n")
	}},
	{"a program that is not there", func(p *kubePod) {
		p.create(strings.Replace(p.main(""), "[sh,", "[nonsense,", 1) + "restartPolicy: Never")
		p.waitFor("{.status.phase}", "Failed")
		wantEqual(p.t, p.ended(), "128 StartError")
		const want = `exec: "nonsense": executable file not found in $PATH`
		if got := p.field("{.status.containerStatuses[0].state.terminated.message}"); !strings.Contains(got, want) {
			p.t.Errorf("message %q", got)
		}
	}},
	{"exec: code, stdin, terminal", func(p *kubePod) {
		p.create(p.main("exec sleep 1000"))
		p.waitFor("{.status.phase}", "Running")
		if got := p.exec("echo out; echo err >&2; exit 9"); got.code != 9 || got.stdout != "out\n" || !strings.HasPrefix(got.stderr, "err\n") {
			p.t.Errorf("exec: %+v", got)
		}
		cmd := p.kubectl("exec", "--stdin", p.name, "--", "sh", "-c", "wc -c; exit 3")
		cmd.Stdin = strings.NewReader(strings.Repeat("x", 1<<20))
		if got := run(p.t, cmd); got.code != 3 || got.stdout != "1048576\n" {
			p.t.Errorf("stdin: %+v", got)
		}
		term, r := onTerminal(p.t, p.kubectl("exec", "--stdin", "--tty", p.name, "--", "sh", "-c",
			"test -t 0 && read line && echo \"got $line\" && read line; exit 5"))
		term.typeIn(p.t, "hello\n")
		term.shows(p.t, "got hello")
		term.typeIn(p.t, "\n")
		if got := r.wait(); got.code != 5 {
			p.t.Errorf("terminal: status %d", got.code)
		}
	}},
	{"memory limit: OOMKilled", func(p *kubePod) {
		p.create(p.main("exec dd if=/dev/zero of=/dev/null bs=200M count=1", "resources: {limits: {memory: 32Mi}}") + "restartPolicy: Never")
		p.waitFor("{.status.phase}", "Failed")
		wantEqual(p.t, p.ended(), "137 OOMKilled")
	}},
	{"limits in the cgroup, and changed", func(p *kubePod) {
		script := cgroupFile("memory/memory.limit_in_bytes", "memory.max") + "; " + cgroupFile("cpu/cpu.cfs_quota_us", "cpu.max")
		got := p.prints(script, "", "resources: {limits: {memory: 64Mi, cpu: 500m}}")
		wantEqual(p.t, got, "67108864\n50000\n")
		p.must(p.t, "patch", "pod", p.name, "--subresource", "resize", "--patch",
			`{"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "96Mi", "cpu": "300m"}, "requests": {"memory": "96Mi", "cpu": "300m"}}}]}}`)
		eventually(p.t, "the limits are changed", func() bool { return p.exec(script).stdout == "100663296\n30000\n" })
		wantEqual(p.t, p.field("{.status.containerStatuses[0].restartCount}"), "0")
	}},
	{"restart policy", func(p *kubePod) {
		p.create(p.main("test -e /v/once && exit 0; touch /v/once; exit 4", "volumeMounts: [{name: v, mountPath: /v}]") +
			"volumes: [{name: v, emptyDir: {}}]\nrestartPolicy: OnFailure")
		p.waitFor("{.status.phase}", "Succeeded")
		wantEqual(p.t, p.ended(), "0 Completed")
		wantEqual(p.t, p.field("{.status.containerStatuses[0].restartCount}"), "1")
	}},
	{"probes by exec", func(p *kubePod) {
		p.create(p.main("touch /alive; usleep 300000; touch /ready; exec sleep 1000",
			"readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}",
			"livenessProbe: {exec: {command: [test, -e, /alive]}, periodSeconds: 1, failureThreshold: 1, initialDelaySeconds: 1}") + "terminationGracePeriodSeconds: 1")
		p.must(p.t, "wait", "--for=condition=Ready", "--timeout", kubeTimeout, "pod/"+p.name)
		wantEqual(p.t, p.field("{.status.containerStatuses[0].restartCount}"), "0")
		wantEqual(p.t, p.exec("rm /alive").code, 0)
		p.waitFor("{.status.containerStatuses[0].restartCount}", "1")
		wantEqual(p.t, p.field("{.status.containerStatuses[0].lastState.terminated.exitCode}"), "137")
	}},
	{"init container", func(p *kubePod) {
		const mount = "volumeMounts: [{name: v, mountPath: /v}]"
		got := p.prints("cat /v/f", "initContainers:\n"+p.container("first", "echo one > /v/f", mount)+
			p.container("second", "echo two >> /v/f", mount)+"volumes: [{name: v, emptyDir: {}}]", mount)
		wantEqual(p.t, got, "one\ntwo\n")
	}},
	{"security context", func(p *kubePod) {
		got := p.prints("id -u; id -g; id -G; ! touch /new; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status",
			"securityContext: {fsGroup: 4321}", `securityContext:
  runAsUser: 1000
  runAsGroup: 1001
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
  seccompProfile: {type: RuntimeDefault}`)
		wantEqual(p.t, got, "1000\n1001\n1001 4321\ntouch: /new: Read-only file system\n"+
			"CapEff:\t0000000000000000\nCapBnd:\t0000000000000400\nNoNewPrivs:\t1\nSeccomp:\t2\n")
	}},
	{"user namespace", func(p *kubePod) {
		got := p.prints("id -u; awk '{ print $1, ($2 != 0), $3 }' /proc/self/uid_map; echo text > /v/f && stat -c %u /v/f; cat /c/key", `hostUsers: false
volumes: [{name: v, emptyDir: {}}, {name: c, downwardAPI: {items: [{path: key, fieldRef: {fieldPath: metadata.name}}]}}]`,
			"volumeMounts: [{name: v, mountPath: /v}, {name: c, mountPath: /c}]")
		wantEqual(p.t, got, "0\n0 1 65536\n0\n"+p.name)
	}},
	{"volumes", func(p *kubePod) {
		p.apply(p.t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+p.name+"}\ndata: {key: value}")
		p.apply(p.t, "apiVersion: v1\nkind: Secret\nmetadata: {name: "+p.name+"}\nstringData: {key: secret}")
		p.t.Cleanup(func() { p.must(p.t, "delete", "configmap/"+p.name, "secret/"+p.name) })
		got := p.prints("cat /config/key; echo; cat /secret/key; echo; cat /sub; echo; ! touch /config/new; "+
			"echo empty > /empty/f; cat /empty/f; echo memory > /memory/f; cat /memory/f; stat -f -c %T /memory /secret; "+
			"cut -c1-3 /token/token; echo $ENV", `volumes:
- {name: config, configMap: {name: `+p.name+`}}
- {name: secret, secret: {secretName: `+p.name+`}}
- {name: empty, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory}}
- {name: token, projected: {sources: [{serviceAccountToken: {path: token}}]}}`, `volumeMounts:
- {name: config, mountPath: /config}
- {name: secret, mountPath: /secret}
- {name: config, mountPath: /sub, subPath: key}
- {name: empty, mountPath: /empty}
- {name: memory, mountPath: /memory}
- {name: token, mountPath: /token}
env: [{name: ENV, valueFrom: {configMapKeyRef: {name: `+p.name+`, key: key}}}]`)
		wantEqual(p.t, got, "value\nsecret\nvalue\ntouch: /config/new: Read-only file system\nempty\nmemory\ntmpfs\ntmpfs\neyJ\nvalue\n")
	}},
	{"hooks after start and before stop", func(p *kubePod) {
		volumes, mount := p.hostFolder()
		p.create(p.main("exec sleep 1000", mount, `lifecycle:
  postStart: {exec: {command: [sh, -c, "echo started > /host/started"]}}
  preStop: {exec: {command: [sh, -c, "echo stops > /host/stops"]}}`) + volumes)
		p.waitFor("{.status.phase}", "Running")
		eventually(p.t, "it has run the hook", func() bool { return exists(p.dir + "/started") })
		p.must(p.t, "delete", "pod", p.name, "--grace-period", "2", "--timeout", kubeTimeout)
		wantEqual(p.t, p.wrote("stops"), "stops\n")
	}},
	{"graceful deletion", func(p *kubePod) {
		volumes, mount := p.hostFolder()
		p.create(p.main("trap 'echo TERM > /host/end; exit 0' TERM; touch /host/up; while :; do usleep 10000; done", mount) +
			p.container("deaf", "trap : TERM; while :; do usleep 10000; done") + volumes)
		p.waitFor("{.status.phase}", "Running")
		eventually(p.t, "it has its trap", func() bool { return exists(p.dir + "/up") })
		p.must(p.t, "delete", "pod", p.name, "--grace-period", "2", "--timeout", kubeTimeout)
		wantEqual(p.t, p.wrote("end"), "TERM\n")
	}},
	{"shared process namespace", func(p *kubePod) {
		p.create(p.main("exec sleep 4321") + p.container("other", livesOn("until ps | grep -q 'sleep 432[1]'; do usleep 50000; done; tr '\\0' ' ' < /proc/1/cmdline")) +
			"shareProcessNamespace: true")
		p.waitFor("{.status.phase}", "Running")
		text, _ := told(p.t, func() string { return p.logs("--container", "other") })
		wantEqual(p.t, text, "/bin/sleep 1000000 ")
	}},
	{"ephemeral container", func(p *kubePod) {
		p.create(p.main("exec sleep 4321"))
		p.waitFor("{.status.phase}", "Running")
		p.must(p.t, "debug", p.name, "--image", criImage, "--target", "main", "--container", "debugger", "--profile", "general", "--",
			"sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline; usleep 200000; exit 6")
		p.waitFor("{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}", "6")
		wantEqual(p.t, p.logs("--container", "debugger"), "sleep 4321 ")
	}},
}

// testRuntimeHandlers looks at the features that containerd has asked the runtimes for. The
// kubelet refuses a pod that needs a missing one.
func testRuntimeHandlers(t *testing.T, k *kubernetes) {
	t.Helper()
	for _, handler := range []string{"sandbox", "runc"} {
		got := k.must(t, "get", "node", "node", "--output", "jsonpath={.status.runtimeHandlers[?(@.name=='"+handler+"')].features}")
		wantEqual(t, got, `{"recursiveReadOnlyMounts":true,"userNamespaces":true}`)
	}
}
