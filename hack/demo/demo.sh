#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tells what the services do, by doing it on the development cluster.
set -euo pipefail
cd "$(dirname "$0")"
state=$(cd ../.. && pwd)/.devcluster
export KUBECONFIG=$state/kubeconfig PATH=$state/bin:$PATH

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

# refused NAME GPUS [sed expression]: creates a VM that must be refused.
refused() {
  local manifest message
  manifest=$(sed -e "s/name: render$/name: $1/" -e "s|cozystack.io/gpus: .*|cozystack.io/gpus: '$2'|" -e "${3:-}" vm.yaml)
  printf '$ kubectl apply -f vm.yaml   # name: %s, cozystack.io/gpus: %s\n' "$1" "$2"
  if message=$(kubectl apply -f - <<<"$manifest" 2>&1); then
    printf 'this VM should have been refused\n' >&2
    exit 1
  fi
  fmt -w 100 <<<"$message"
}

kubectl delete --ignore-not-found vmi --all --namespace tenant-demo >/dev/null 2>&1 || true

step "1. The hoster sells two classes of GPU, and permits their devices in KubeVirt."
run kubectl apply -f kubevirt.yaml -f classes.yaml
run kubectl get gpuclasses

step "2. A tenant whose namespace is entitled to vGPU names a class and a count."
run kubectl apply -f tenant.yaml -f vm.yaml
run kubectl get vmi render -n tenant-demo -o 'jsonpath={.metadata.annotations.cozystack\.io/gpus}{"\n"}'

step "3. The VM has its device, and last of all its disks one with the vGPU licence."
run kubectl get vmi render -n tenant-demo -o 'jsonpath={range .spec.domain.devices.gpus[*]}{"gpu   "}{.name}{"  "}{.deviceName}{"\n"}{end}{range .spec.domain.devices.disks[*]}{"disk  "}{@}{"\n"}{end}{range .spec.volumes[*]}{"volume  "}{@}{"\n"}{end}'

step "4. What cannot work is refused, with every reason at once."
refused greedy '[{"className":"h100","count":5}]'
refused doubtful '[{"className":"l40s-24c","count":2},{"className":"a100","count":1}]'
refused smuggler '[{"className":"h100","count":1}]' 's|      disks:|      gpus: [{name: mine, deviceName: nvidia.com/L40S-24C}]\n      disks:|'

step "Next, try it yourself:"
cat <<TEXT
  export KUBECONFIG=$KUBECONFIG
  export PATH=$state/bin:\$PATH
  kubectl explain gpuclass.spec
  kubectl edit gpuclass h100                 # raise maxCount, then ask for 5 again
  kubectl label namespace tenant-demo namespace.cozystack.io/vgpu-   # and ask for a vGPU
  less $state/logs/vmi-webhook.log           # each decision, with its reasons
  make down                                  # ends the cluster and deletes its state
TEXT
