import subprocess, sys
def test_run():
    with open("/tmp/plan/st/run1.log","w") as f:
        subprocess.run([sys.executable,"-m","pytest","-q","--durations=0","--timeout=200","tests/stack/test_releases.py","tests/stack/test_broken_canaries.py","tests/stack/test_tensor_models.py"],stdout=f,stderr=f)
